"""Measures how the cost of a message grows with connections, queues, bytes and replicas: `make bench-curves`."""
