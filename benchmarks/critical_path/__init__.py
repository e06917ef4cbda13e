"""Who waits for what while a message is stored: `make bench-critical-path`."""
