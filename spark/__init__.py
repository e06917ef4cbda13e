"""Reading topics in bulk from Apache Spark."""
