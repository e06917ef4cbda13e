"""Consuming, measured in the same way on raftmq and on its alternatives: `make bench-peers-consuming`."""
