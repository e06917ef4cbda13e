"""Raft without input and output: events in, effects out. See `raft` for the theory of operation."""

from raftlog.consensus.raft import RaftCore

__all__ = ["RaftCore"]
