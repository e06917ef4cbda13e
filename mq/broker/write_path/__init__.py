"""From a message to a committed log entry: queue offsets, entries, and replies once an entry is committed."""
