"""Finds the problems of a cluster in a survey, which `raftmq doctor` and the console show."""
