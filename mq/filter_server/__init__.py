"""`raftmq filter-server`: runs the filter programs of consumer groups beside a broker."""
