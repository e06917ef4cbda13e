"""Measures the cost of an archive in object storage, and how fast messages and log files come from it."""
