"""Reads of whole topics from one replica, for Spark: plan, read, and a lease on the files of the log."""
