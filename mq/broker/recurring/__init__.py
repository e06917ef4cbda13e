"""Schedules: messages that the leader sends by a rule, each tick once."""
