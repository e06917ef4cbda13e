"""Bulk reads of topics, and a sink, for Apache Spark."""
