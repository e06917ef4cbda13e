"""The `raftmq` command."""

from __future__ import annotations

from mq.cli.app import main

__all__ = ["main"]
