"""`raftmq bench`: measures throughput and latency of a cluster, with the SDK."""
