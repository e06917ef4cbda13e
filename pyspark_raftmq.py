"""Found by Spark: it looks for modules named `pyspark_*`, so that `format("raftmq")` needs no registration."""

from spark.source import RaftmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
