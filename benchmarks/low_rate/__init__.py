"""Measures the cost and the latency of messages at low rates: `make bench-low-rate`."""
