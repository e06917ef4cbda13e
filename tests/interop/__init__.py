"""Clients of other projects, against real brokers; see README.md."""
