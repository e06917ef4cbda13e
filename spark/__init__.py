"""A data source and a sink for Apache Spark: reads topics in bulk, and writes rows as messages."""
