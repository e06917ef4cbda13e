"""Encodes and decodes frames, headers and bodies of all requests."""
