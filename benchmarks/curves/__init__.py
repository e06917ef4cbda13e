"""`make bench-curves`: measures the cost of a message with more connections, queues, bytes, replicas."""
