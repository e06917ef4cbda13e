"""The Spark side of the demonstration, as a separate program: three streaming queries, and the sums at the end.

One query writes every line to Parquet files, one counts words, and one writes the lines with definitions to a second
topic. They run while lines arrive and replicas fail. Reports progress on standard output, one JSON object per line, and
ends when standard input gives the total number of lines. The last object is the result.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

TOP: Final = 20
REPORT_SECONDS: Final = 0.5
START_ATTEMPTS: Final = 5
SLOW_START: Final = "Timed out while waiting for the Python worker"
STALLED_SECONDS_MAX: Final = 120.0
"""The demonstration has failed when no row arrives for so long."""


def words_of(lines: DataFrame) -> DataFrame:
    """Count the words of these lines, the most frequent first."""
    word = f.explode(f.split(f.col("body").cast("string"), r"[^A-Za-z_]+"))
    return lines.select(word.alias("word")).where("word != ''").groupBy("word").count().orderBy(f.desc("count"), "word")


def definitions_in(lines: DataFrame) -> DataFrame:
    """Return the lines that define a function or a class."""
    return lines.where("ltrim(cast(body as string)) rlike '^(async |def |class )'").select("keys", "body")


def start_query(writer: Any) -> Any:
    """Start a query, and wait until it runs.

    Spark gives the Python process of a query ten seconds to start, whatever the load; so queries are started one after
    another, and retried on that timeout. Raises RuntimeError when it fails otherwise, or too often.
    """
    for attempt in itertools.count(1):
        query = writer.trigger(processingTime="1 second").start()
        while query.isActive and query.lastProgress is None:
            time.sleep(0.2)
        if query.isActive:
            return query
        if attempt == START_ATTEMPTS or SLOW_START not in str(query.exception()):
            raise RuntimeError(f"a query has ended: {query.exception()}")
    raise AssertionError("unreachable: the loop counts for ever")


class DemoQueries:
    """Three queries over one topic, with their files in ``directory``. A micro-batch has up to ``batch`` lines."""

    def __init__(self, session: SparkSession, namesrv: str, topics: list[str], directory: Path, batch: int) -> None:
        self._session = session
        self._namesrv = namesrv
        self._topic, self._second_topic = topics
        self._directory = directory
        self._batch = batch
        self._words: dict[str, int] = {}

    def start(self) -> list[Any]:
        """Start the queries for lines, words and definitions."""
        archive = self._lines(commitToGroup="demo_spark").select("keys", "body", "queue_id", "queue_offset")
        counts = words_of(self._lines(columns="body")).limit(TOP)
        definitions = definitions_in(self._lines())
        return [
            start_query(
                archive.writeStream.format("parquet")
                .option("path", str(self._directory / "lines"))
                .option("checkpointLocation", self._checkpoint("lines"))
            ),
            start_query(
                counts.writeStream.outputMode("complete")
                .foreachBatch(self._keep_words)
                .option("checkpointLocation", self._checkpoint("words"))
            ),
            start_query(
                definitions.writeStream.format("raftmq")
                .options(namesrv=self._namesrv, topic=self._second_topic)
                .option("checkpointLocation", self._checkpoint("definitions"))
            ),
        ]

    def _lines(self, **options: str) -> DataFrame:
        source = self._session.readStream.format("raftmq").options(
            namesrv=self._namesrv, subscribe=self._topic, **options
        )
        limits = {"startingOffsets": "earliest", "fetchTimeout": "2s", "maxOffsetsPerTrigger": str(self._batch)}
        return source.options(**limits).load()

    def _checkpoint(self, name: str) -> str:
        return str(self._directory / f"checkpoint-{name}")

    def _keep_words(self, top: DataFrame, _batch_id: int) -> None:
        self._words = {row["word"]: row["count"] for row in top.collect()}

    def outcome(self, total: int) -> dict[str, Any]:
        """Return the contents of the files, and whether both ways of counting words agree."""
        files = self._session.read.parquet(str(self._directory / "lines"))
        (sums,) = files.agg(f.count("*").alias("rows"), f.count_distinct("keys").alias("different")).collect()
        (places,) = files.agg(f.count_distinct("queue_id", "queue_offset").alias("places")).collect()
        again = {row["word"]: row["count"] for row in words_of(files).limit(TOP).collect()}
        return {
            "read": sums["rows"],
            "twice": sums["rows"] - sums["different"],
            "missing": total - sums["different"],
            "places_twice": sums["rows"] - places["places"],
            **self._definitions(files),
            "words": self._words,
            "words_agree": again == self._words,
        }

    def _definitions(self, files: DataFrame) -> dict[str, int]:
        """Compare the second topic with the lines in the files that should be in it."""
        second = self._session.read.format("raftmq").options(namesrv=self._namesrv, subscribe=self._second_topic).load()
        (sums,) = second.agg(f.count("*").alias("rows"), f.count_distinct("keys").alias("different")).collect()
        definitions = definitions_in(files).select("keys").distinct()
        return {
            "written": sums["rows"],
            "written_twice": sums["rows"] - sums["different"],
            "not_written": definitions.join(second.select("keys"), "keys", "left_anti").count(),
        }


def main() -> None:
    """Run the queries. Arguments: name server, topic to read, topic to write, directory, lines per micro-batch."""
    namesrv, topic, second_topic, directory, batch = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[2]")
        .appName("raftmq demonstration")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    job = DemoQueries(session, namesrv, [topic, second_topic], Path(directory), int(batch))
    queries = job.start()
    counts: list[int] = []
    threading.Thread(target=lambda: counts.append(int(sys.stdin.readline() or -1)), daemon=True).start()
    report(queries, counts)
    for query in queries:
        query.stop()
    if counts[0] >= 0:
        print(json.dumps({"outcome": job.outcome(counts[0])}), flush=True)
    session.stop()


def report(queries: list[Any], counts: list[int]) -> None:
    """Wait until all queries have read the expected number of rows, or make no more progress.

    Raises RuntimeError when a query has failed.
    """
    rows_of_batches: dict[tuple[int, int], int] = {}
    moved_at = time.monotonic()
    while True:
        before = dict(rows_of_batches)
        for number, query in enumerate(queries):
            if not query.isActive:
                raise RuntimeError(f"a query has ended: {query.exception()}")
            for progress in query.recentProgress:
                rows_of_batches[number, progress["batchId"]] = progress["numInputRows"]
        rows = [
            sum(count for (which, _), count in rows_of_batches.items() if which == number)
            for number in range(len(queries))
        ]
        print(json.dumps({"rows": rows[0], "counted": rows[1]}), flush=True)
        if rows_of_batches != before:
            moved_at = time.monotonic()
        if counts and (min(rows) >= counts[0] or time.monotonic() - moved_at > STALLED_SECONDS_MAX):
            return
        time.sleep(REPORT_SECONDS)


if __name__ == "__main__":
    main()
