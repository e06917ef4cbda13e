"""Consumers: push, pull and pop; rebalancing, offsets, locks, handlers and retries."""
