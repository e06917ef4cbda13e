"""Takes a message to a committed log entry: queue offsets, entries, and replies after the commit."""
