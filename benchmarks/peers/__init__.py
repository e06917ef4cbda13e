"""Puts the same loads on raftmq and on other systems, in one run: `make bench-peers`."""
