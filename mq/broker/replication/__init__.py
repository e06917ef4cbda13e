"""Requests between the replicas of a group: forwarded writes, addresses, authentication."""
