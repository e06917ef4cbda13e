"""Stores messages in log entries: assigns queue offsets, builds entries, and replies after the commit."""
