"""Decodes bytes of connections to typed requests and responses."""
