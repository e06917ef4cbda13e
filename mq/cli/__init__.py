"""The `raftmq` command."""
