"""Messages that wait for the end of their transaction."""
