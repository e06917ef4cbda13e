"""Requests between the replicas of a group: forwarded writes, client addresses, authentication."""
