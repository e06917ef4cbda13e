"""The index of messages by key: files for parts of the log, and searches through them."""
