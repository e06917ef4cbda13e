"""`raftmq bench`: how fast a cluster takes and gives messages, and how long one takes; measured with the SDK."""
