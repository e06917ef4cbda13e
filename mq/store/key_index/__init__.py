"""Indexes parts of the log by key, in files, and searches them."""
