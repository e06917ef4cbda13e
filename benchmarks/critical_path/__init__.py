"""Measures which threads wait for which others while a message is stored: `make bench-critical-path`."""
