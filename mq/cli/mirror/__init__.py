"""`raftmq mirror`: moves in from another cluster, by copying it until all clients have changed over."""
