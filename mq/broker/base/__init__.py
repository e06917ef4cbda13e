"""Shared by all parts of a broker: counters, rate-limited warnings, disk usage, retention."""
