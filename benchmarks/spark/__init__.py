"""Measures how fast Spark reads from brokers and writes to them, and beside Kafka."""
