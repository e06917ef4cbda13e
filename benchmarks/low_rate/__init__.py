"""What a message costs, and how long it takes, when there are few of them: `make bench-low-rate`."""
