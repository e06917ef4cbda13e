"""A driver of its own that archives a topic, to be killed. It runs until then.

Arguments: name server, topic, another topic, directory, most messages of a micro-batch. Two queries read the topic: one
writes Parquet files in the directory ``files`` of the directory, one writes to the other topic, from ``topic``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_faults import may_be_tried_again


def started(session: Any, namesrv: str, topic: str, copy: str, directory: str, records_max: str) -> list[Any]:
    """Start both queries, unless they run: one after the other, since Spark cannot prepare two of them at once."""
    running = {query.name: query for query in session.streams.active}
    options = {"namesrv": namesrv, "subscribe": topic, "maxOffsetsPerTrigger": records_max}
    for name in {"files", "topic"} - running.keys():
        frame = session.readStream.format("raftmq").options(**options, commitToGroup=f"{name}_{topic}").load()
        if name == "topic":
            writing = frame.select("body").writeStream.format("raftmq").options(namesrv=namesrv, topic=copy)
        else:
            writing = frame.writeStream.format("parquet").option("path", f"{directory}/files/rows")
        query = writing.queryName(name).option("checkpointLocation", f"{directory}/{name}/checkpoint").start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.05)
        running[name] = query
    return list(running.values())


def main() -> None:
    """Arguments as above."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    while True:
        try:
            started(session, *sys.argv[1:])
            session.streams.awaitAnyTermination()
        except PySparkException as error:
            if not may_be_tried_again(error):
                raise
        session.streams.resetTerminated()


if __name__ == "__main__":
    main()
