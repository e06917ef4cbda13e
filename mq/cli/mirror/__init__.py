"""`raftmq mirror`: migrates from another cluster by copying it, until all clients use the new one."""
