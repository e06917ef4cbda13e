"""What is wrong with a cluster, from a survey: what `raftmq doctor` and the console show."""
