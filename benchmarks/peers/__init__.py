"""The same loads on raftmq and on what people use instead, in one run: `make bench-peers`."""
