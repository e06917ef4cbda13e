"""Requests of operators: topics, groups, offsets, settings, members of the Raft group, statistics."""
