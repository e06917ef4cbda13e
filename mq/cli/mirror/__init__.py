"""`raftmq mirror`: moves in from another cluster, by copying it until everybody has changed over."""
