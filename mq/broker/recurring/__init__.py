"""Schedules: the leader sends a message at each tick of a rule, exactly once."""
