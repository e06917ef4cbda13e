"""Instructions per message on the hot paths, against a committed baseline: `make bench-gate`."""
