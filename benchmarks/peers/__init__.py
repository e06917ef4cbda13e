"""Puts the same loads on raftmq and on its alternatives, in one run: `make bench-peers`."""
