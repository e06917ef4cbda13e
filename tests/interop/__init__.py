"""Clients that others wrote, against real brokers; see README.md."""
