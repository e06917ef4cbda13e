"""Measures which threads wait for which while a message is stored: `make bench-critical-path`."""
