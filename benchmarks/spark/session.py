"""Executes queries in Spark for `make bench-spark`, in a separate process: reads and writes one JSON object per line.

``{"do": "scan", "format": F, "options": {...}, "path": P}`` reads a table to its end and discards the rows; ``count``
counts them; ``digest`` counts them and adds the checksums of a column; ``copy`` writes them with ``to``; ``batches``
reads a topic as a stream to its end; ``make`` writes ``rows`` rows of 1 KiB with a key to Parquet files. The response
has ``seconds``, and ``rows`` where they were counted. An empty line, or the end of the input, ends it.

The first argument, if there is one, has jars for Spark, separated by commas.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def open_session() -> Any:
    """Open Spark with two cores, on the loopback interface only."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine a Python process starts slowly
    }
    if len(sys.argv) > 1:
        settings["spark.jars"] = sys.argv[1]
    builder = SparkSession.builder.master("local[2]").appName("raftmq bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run(session: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Execute one request."""
    began = time.perf_counter()
    rows: int | None = None
    digest = 0
    batches: list[dict[str, Any]] = []
    if request["do"] == "make":
        body = "unhex(repeat(md5(cast(id as string)), 64)) as body"
        frame = session.range(0, request["rows"], 1, 8).selectExpr("cast(id as string) as keys", body)
        frame.write.mode("overwrite").parquet(request["path"])
    elif request["do"] == "batches":
        frame = session.readStream.format(request["format"]).options(**request["options"]).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", request["path"])
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [{"rows": each.numInputRows, "ms": dict(each.durationMs)} for each in query.recentProgress]
    else:
        reader = session.read.format(request["format"]).options(**request.get("options", {}))
        frame = reader.load(request["path"]) if request.get("path") else reader.load()
        match request["do"]:
            case "scan":
                frame.write.format("noop").mode("overwrite").save()
            case "count":
                rows = frame.count()
            case "digest":
                column = request["column"]
                [result] = frame.selectExpr("count(1) as rows", f"sum(crc32({column})) as digest").collect()
                rows, digest = result["rows"], result["digest"]
            case "copy":
                to = request["to"]
                writer = frame.selectExpr(*request.get("select", ["*"])).write.format(to["format"])
                writer = writer.options(**to.get("options", {})).mode(to["mode"])
                writer.save(to["path"]) if to.get("path") else writer.save()
            case other:
                raise ValueError(f"there is no step called {other!r}")
    return {"seconds": time.perf_counter() - began, "rows": rows, "digest": digest, "batches": batches}


def main() -> None:
    """Execute requests until the input ends."""
    session = open_session()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        try:
            response = run(session, json.loads(line))
        except Exception as error:  # the caller gets any failure of a query
            response = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(response), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
