"""Runs real brokers under faults, records what clients do and see as a history, and checks the history."""
