"""Tables written to topics by a real Spark: each row is there once, and what cannot be written is told before."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from tests.spark.stage import Stage, bodies_of

Read = Callable[..., Any]
ROWS = 20_000


def write(frame: Any, stage: Stage, mode: str = "append", **options: str) -> None:
    frame.write.format("raftmq").mode(mode).options(**{"namesrv": stage.namesrv, **options}).save()


def test_written_rows_are_read_back(session: Any, read: Read, stage: Stage) -> None:
    first, second = stage.topic(), stage.topic()
    rows = [
        (first, 2, bytearray(b"one"), "k1 k2", "A", {"colour": "red"}),
        (None, None, bytearray(b"\xff\x00"), None, None, None),
        (first, 0, bytearray(b"x" * 5000), None, "\u00fc", {}),
    ]
    schema = "topic string, queue_id int, body binary, keys string, tags string, properties map<string,string>"
    write(session.createDataFrame(rows, schema), stage, topic=second, compression="zlib")
    found = {bytes(row.body): row for row in read(subscribe=f"{first},{second}").collect()}
    assert len(found) == 3
    one, two, three = found[b"one"], found[b"\xff\x00"], found[b"x" * 5000]
    assert (one.topic, one.queue_id, one.keys, one.tags) == (first, 2, "k1 k2", "A")
    assert one.properties["colour"] == "red"
    assert (two.topic, two.keys, two.tags) == (second, None, None)
    assert (three.topic, three.queue_id, three.tags) == (first, 0, "\u00fc")


def test_topic_is_copied_with_its_keys_tags_and_properties(session: Any, read: Read, stage: Stage) -> None:
    source, copy = stage.topic(), stage.topic()
    stage.send(source, [b"%d" % number for number in range(50)])
    write(read(subscribe=source).select("body", "keys", "tags", "properties"), stage, topic=copy)
    rows = read(subscribe=copy).collect()
    assert bodies_of(rows) == Counter(b"%d" % number for number in range(50))
    originals = {row.message_id for row in read(subscribe=source).collect()}
    assert not originals & {row.message_id for row in rows}, "a copy is a message of its own"


def test_job_rerun_under_its_name_adds_nothing(session: Any, read: Read, stage: Stage) -> None:
    topic = stage.topic()
    frame = session.range(0, ROWS, 1, 3).selectExpr("cast(id as string) as body")
    for version in ("1", "1", "2", "1"):
        write(frame, stage, topic=topic, txnAppId="nightly", txnVersion=version)
    assert bodies_of(read(subscribe=topic).collect()) == Counter({b"%d" % number: 2 for number in range(ROWS)})


@pytest.mark.parametrize(
    ("columns", "mode", "options", "told"),
    [
        ("'x' as body, 1 as queue_offset", "append", {}, "the sink takes no column 'queue_offset'"),
        ("1 as body", "append", {}, "column body of the sink is binary or string, not int"),
        ("'x' as tags", "append", {}, "the sink needs a column body"),
        ("'x' as body", "overwrite", {}, "nothing in them can be overwritten"),
        ("'x' as body", "append", {"topic": "NoSuchTopic"}, "the topic 'NoSuchTopic' does not exist"),
        ("'x' as body", "append", {"namesrv": "127.0.0.1:1"}, "no name server answered"),
        ("'x' as body", "append", {"subscribe": "T"}, "option subscribe is for batch and stream, not for sink"),
        ("'x' as body", "append", {"compresion": "lz4"}, "did you mean 'compression'"),
    ],
)
def test_unwritable_input_is_reported_before_writing(
    session: Any, stage: Stage, columns: str, mode: str, options: dict[str, str], told: str
) -> None:
    frame = session.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(AnalysisException) as refused:
        write(
            frame,
            stage,
            mode,
            **{"topic": "T", **options} if "topic" in options else options | {"topic": existing(stage)},
        )
    assert told in str(refused.value)


_existing: list[str] = []


def existing(stage: Stage) -> str:
    if not _existing:
        _existing.append(stage.topic())
    return _existing[0]


def test_invalid_row_fails_its_task(session: Any, stage: Stage) -> None:
    frame = session.createDataFrame([("x",), (None,)], "body string").coalesce(1)
    with pytest.raises(PySparkException, match="row 1: its body is null"):
        write(frame, stage, topic=stage.topic())


class Copy:
    """A stream that copies a topic to another one, with a checkpoint."""

    def __init__(self, stage: Stage, stream: Any, directory: Path, topic: str) -> None:
        self._stage = stage
        self._stream = stream
        self.directory = directory
        self._topic = topic

    def run(self, **options: str) -> None:
        """Copy what there is."""
        query = (
            self._stream.select("body")
            .writeStream.format("raftmq")
            .options(**{"namesrv": self._stage.namesrv, "topic": self._topic, **options})
            .option("checkpointLocation", str(self.directory))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600), "the query has not ended within ten minutes"

    def forget_last_commit(self) -> None:
        """As if the driver had been killed after the sink and before the commit log."""
        newest = max(
            (self.directory / "commits").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1
        )
        for path in (newest, newest.with_name(f".{newest.name}.crc")):
            path.unlink(missing_ok=True)


def test_replayed_micro_batch_adds_nothing(
    stream: Callable[..., Any], read: Read, stage: Stage, tmp_path: Path
) -> None:
    source, copy = stage.topic(), stage.topic(queues=3)
    sent = [b"%d" % number for number in range(5000)]
    stage.send(source, sent[:3000])
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000"}
    copying = Copy(stage, stream(**options), tmp_path / "checkpoint", copy)
    copying.run()
    for _ in range(2):
        copying.forget_last_commit()
        stage.move_leader()
        copying.run(maxInFlightBytes="64k")
    assert bodies_of(read(subscribe=copy).collect()) == Counter(sent[:3000])
    stage.send(source, sent[3000:])
    copying.run()
    assert bodies_of(read(subscribe=copy).collect()) == Counter(sent)
    shutil.rmtree(copying.directory)  # another query: its rows are others
    copying.run()
    assert bodies_of(read(subscribe=copy).collect()) == Counter(sent + sent)


def test_stream_takes_its_name_from_its_checkpoint(stream: Callable[..., Any], stage: Stage, tmp_path: Path) -> None:
    source = stage.topic()
    stage.send(source, [b"x"])
    copying = Copy(stage, stream(subscribe=source, startingOffsets="earliest"), tmp_path, stage.topic())
    with pytest.raises(StreamingQueryException, match="txnAppId and txnVersion are for batch writes"):
        copying.run(txnAppId="a", txnVersion="1")
