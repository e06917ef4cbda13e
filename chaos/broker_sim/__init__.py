"""Whole brokers in simulated time: real frames, real handlers, simulated clocks, disks, networks and clients."""
