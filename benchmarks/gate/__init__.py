"""Instructions per message of what each message goes through, against a committed baseline: `make bench-gate`."""
