"""Resident memory over a long run: whether it grows."""
