"""`raftmq filter-server`: runs the filter programs of consumer groups in a process near a broker."""
