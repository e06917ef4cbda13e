"""A driver of its own that archives a topic, to be killed: name server, topic, directory, and another topic or nothing.

It writes to Parquet files, or to the other topic.

Runs until it is killed.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Arguments as above."""
    namesrv, topic, directory, sink = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    options = {"namesrv": namesrv, "subscribe": topic, "maxOffsetsPerTrigger": "100", "commitToGroup": f"g_{topic}"}
    frame = session.readStream.format("raftmq").options(**options).load()
    if sink:
        writing = frame.select("body").writeStream.format("raftmq").options(namesrv=namesrv, topic=sink)
    else:
        writing = frame.writeStream.format("parquet").option("path", f"{directory}/rows")
    writing.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()


if __name__ == "__main__":
    main()
