"""Reads whole topics in bulk from one replica, for Spark: plans, reads, and leases of log files."""
