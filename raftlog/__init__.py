"""A replicated log: Raft consensus over segment files. Knows nothing of messages."""
