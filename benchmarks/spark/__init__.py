"""Measures how fast Spark reads from brokers and writes to them, also in comparison with Kafka."""
