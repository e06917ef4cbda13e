"""Bytes from a connection to typed requests and responses."""
