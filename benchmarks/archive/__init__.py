"""Measures the cost of archiving in object storage, and the speed of reading messages and log files from it."""
