"""Builds frames, headers and bodies of all requests."""
