"""`make bench-curves`: what a message costs when there is more of something: connections, queues, bytes, replicas."""
