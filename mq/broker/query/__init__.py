"""Single messages by physical offset, by time and by key."""
