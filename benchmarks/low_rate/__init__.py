"""Measures the cost and the latency of messages when there are few of them: `make bench-low-rate`."""
