"""Measures consumers of raftmq and of other systems in the same way: `make bench-peers-consuming`."""
