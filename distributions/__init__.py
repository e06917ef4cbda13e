"""Builds the distributions of this repository, and tries them: `make dist`, `make dist-check`."""
