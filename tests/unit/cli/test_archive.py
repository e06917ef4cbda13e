"""`raftmq archive` with a bucket, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from mq.store.archive.archiver import archive
from mq.store.archive.worker_protocol import Trouble
from raftlog.segment.s3_storage import open_s3
from tests.support.archived_logs import BEGIN_MS, MessageLog, job
from tests.support.object_storage import BUCKET, ObjectStorage

URL = f"s3://{BUCKET}/a/broker"


def run(storage: ObjectStorage, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["archive", *arguments, "--endpoint-url", storage.url])


def printed(storage: ObjectStorage, *arguments: str) -> str:
    result = run(storage, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def cat(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines that `raftmq archive cat` prints: past the standard output that a CliRunner replaces."""

    def lines(*arguments: str) -> list[str]:
        found: list[bytes] = []
        monkeypatch.setattr("mq.cli.produce_consume.print_bytes", found.append)
        printed(storage, "cat", URL, *arguments)
        return b"".join(found).decode().splitlines()

    return lines


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


@pytest.fixture
def log(storage: ObjectStorage) -> MessageLog:
    """Its complete files are archived."""
    messages, clock = MessageLog(), count(BEGIN_MS)
    messages.send(60)
    last = list(archive(open_s3(URL, storage.url), messages.source(), job(), now_ms=lambda: next(clock)))[-1]
    assert last.trouble is None, last
    return messages


def test_archive_is_listed_printed_and_verified(
    storage: ObjectStorage, log: MessageLog, cat: Callable[..., list[str]]
) -> None:
    sent = log.sent[: log.complete_index]
    files = json.loads(printed(storage, "ls", URL, "--json"))
    assert [files[0]["first_index"], files[-1]["last_index"]] == [1, log.complete_index]
    assert {each["read_back"] for each in files} == {each["indexed"] for each in files} == {"yes"}
    assert f"{log.complete_index} archived" in printed(storage, "ls", URL)
    queues = json.loads(printed(storage, "ls", URL, "--topics", "--json"))
    assert [(each["topic"], each["queue"], each["messages"]) for each in queues] == [
        (topic, queue_id, sum(each[:2] == (topic, queue_id) for each in sent))
        for topic, queue_id in (("T", 0), ("T", 1), ("U", 0))
    ]
    wanted = [body.decode() for topic, queue_id, offset, body in sent if (topic, queue_id) == ("T", 1) and offset >= 5]
    assert cat("T", "--queue", "1", "--offset", "5") == wanted
    shown: list[dict[str, Any]] = [json.loads(line) for line in cat("T", "--count", "3", "--json")]
    assert [(each["queue"], each["offset"], each["body"]) for each in shown] == [
        (queue_id, offset, body.decode()) for topic, queue_id, offset, body in sent if topic == "T"
    ][:3]
    tagged = cat("T", "--tag", "green", "--since", "2027-01-15T08:00:30Z", "-v")
    assert tagged
    assert all(" green " in line for line in tagged)
    verified = json.loads(printed(storage, "verify", URL, "--json"))
    assert (verified["intact"], verified["archived_index"], verified["indexes"]) == (
        True,
        log.complete_index,
        len(files),
    )
    assert "intact" in printed(storage, "verify", URL)


def test_archive_commands_refuse_damaged_and_missing_archives(storage: ObjectStorage, log: MessageLog) -> None:
    key = next(each for each in storage.names() if "/log/" in each)
    content = storage.content(key)
    storage.put(key, content[:200] + b"\xff" + content[201:])
    for arguments in (["verify", URL], ["cat", URL, "T"]):
        failed = refusal(run(storage, *arguments))
        assert (failed.exit_code, key in str(failed)) == (EXIT_FAILED, True)
    missing = refusal(run(storage, "ls", f"s3://{BUCKET}/nothing"))
    assert (missing.exit_code, "contains no backup" in str(missing)) == (EXIT_REFUSED, True)


def test_topic_that_the_archive_does_not_have_is_reported(storage: ObjectStorage, log: MessageLog) -> None:
    unknown = refusal(run(storage, "cat", URL, "Orderz"))
    assert (unknown.exit_code, "has no message of topic 'Orderz'" in str(unknown)) == (EXIT_REFUSED, True)
    assert run(storage, "cat", URL, "T", "--tag", "nothing").exit_code == 0


def test_backup_verify_reads_an_archive(storage: ObjectStorage, log: MessageLog) -> None:
    result = CliRunner().invoke(app, ["backup", "verify", URL, "--json", "--endpoint-url", storage.url])
    assert json.loads(result.stdout)["last_index"] == log.complete_index


def test_store_that_ignores_conditions_is_refused(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, store = MessageLog(), open_s3(URL, storage.url)
    messages.send(60)
    put = store._client.put_object
    monkeypatch.setattr(store._client, "put_object", lambda IfNoneMatch="", **given: put(**given))
    (step,) = archive(store, messages.source(), job(), now_ms=lambda: BEGIN_MS)
    assert step.trouble is Trouble.REFUSED
    assert "If-None-Match" in step.reason
