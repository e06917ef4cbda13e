"""The key index: files for parts of the log, and searches in them."""
