"""Compares the instructions per message on the hot paths with a committed baseline: `make bench-gate`."""
