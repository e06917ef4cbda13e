"""Faults as values, and clusters in simulated time."""
