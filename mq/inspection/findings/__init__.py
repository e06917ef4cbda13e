"""The problems of a cluster, found in a survey, that `raftmq doctor` and the console show."""
