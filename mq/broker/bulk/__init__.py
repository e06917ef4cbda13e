"""Bulk reads of whole topics from one replica, for Spark: plan, read, and a lease on log files."""
