"""Bad days of the store of an archive: archiving stops with the reason and what to do, and goes on by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import botocore.endpoint
import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.store.archive.archiver import archive
from mq.store.archive.reader import ArchiveReader, MessageQuery
from mq.store.archive.worker_protocol import ArchiveStep, Trouble
from raftlog.segment import s3_storage
from raftlog.segment.backup_store import StoreFailed
from raftlog.segment.s3_storage import open_s3
from tests.support.archived_logs import BEGIN_MS, MessageLog, job
from tests.support.object_storage import ACCESS_KEY, BUCKET, CUT, ObjectStorage, Refusal

URL = f"s3://{BUCKET}/a/broker"


def steps(log: MessageLog, storage: ObjectStorage, known_index: int = 0) -> Iterator[ArchiveStep]:
    clock, source = count(BEGIN_MS + known_index), log.source()
    try:
        yield from archive(open_s3(URL, storage.url), source, job(known_index), now_ms=lambda: next(clock))
    finally:
        source.close()


def check_archived(log: MessageLog, storage: ObjectStorage) -> None:
    reader = ArchiveReader(open_s3(URL, storage.url))
    assert reader.manifest.archived.index == log.complete_index
    reader.verify()
    found = [each.body for each in reader.messages(MessageQuery(topic="U"))]
    assert found == [body for topic, _, _, body in log.sent[: log.complete_index] if topic == "U"]
    reader.close()


@pytest.fixture
def log() -> MessageLog:
    messages = MessageLog()
    messages.send(60)
    return messages


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        (Refusal(507, "InsufficientStorage"), "make room in the store"),
        (Refusal(507, "XMinioStorageFull"), "make room in the store"),
        (Refusal(403, "QuotaExceeded"), "make room in the store"),
        (Refusal(400, "ServiceQuotaExceededException"), "make room in the store"),
        (Refusal(400, "ExpiredToken"), "renew the credentials"),
        (Refusal(403, "RequestTimeTooSkewed"), "set the clock"),
        (Refusal(403, "AccessDenied"), ""),
        (Refusal(503, "SlowDown"), ""),
    ],
    ids=lambda given: getattr(given, "code", ""),
)
def test_archiving_stops_while_the_store_refuses_writes(
    storage: ObjectStorage, log: MessageLog, refusal: Refusal, remedy: str
) -> None:
    running = steps(log, storage)
    first = next(running)
    storage.fault = lambda method, path: refusal if method == "PUT" else None
    *others, last = running
    assert others == [], "nothing is reported that is not stored"
    assert (last.is_last, last.trouble) == (True, Trouble.STORE)
    assert refusal.code in last.reason
    assert remedy in last.reason
    storage.come_back()
    again = list(steps(log, storage, first.index))
    assert again[0].index == first.index, "what was reported is still there"
    assert again[-1].trouble is None
    check_archived(log, storage)


def test_disconnections_and_slow_down_requests_are_retried(
    storage: ObjectStorage, log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    monkeypatch.setattr(botocore.endpoint.time, "sleep", lambda seconds: None)
    asked: dict[str, int] = {}

    def unkind(method: str, path: str) -> Refusal | int | None:
        asked[path] = number = asked.get(path, 0) + (method == "PUT")
        if method != "PUT" or "conditions" in path:
            return None
        answers: dict[int, Refusal | int] = {1: CUT, 2: Refusal(503, "SlowDown")}
        return answers.get(number)

    storage.fault = unkind
    found = list(steps(log, storage))
    assert [each.trouble for each in found if each.is_last] == [None]
    assert max(asked.values()) >= 3
    storage.come_back()
    check_archived(log, storage)


def test_renewed_credentials_are_used_without_a_restart(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = x\n")
    store = open_s3(URL, storage.url)
    store.write("log/a", [b"0123456789"])
    storage.expired.add(ACCESS_KEY)
    now = 1000.0
    monkeypatch.setattr(s3_storage, "monotonic", lambda: now)
    with pytest.raises(StoreFailed, match=r"ExpiredToken.*renew the credentials"):
        store.read_range("log/a", 4, 3)
    file.write_text("[default]\naws_access_key_id = AKIARENEWEDRENEWED00\naws_secret_access_key = y\n")
    now += s3_storage.RENEW_SECONDS * 1e6
    assert store.read_range("log/a", 4, 3) == b"3456"
    store.write("log/b", [b"new"])
    store.close()


def test_group_is_restored_to_a_time_within_a_file(storage: ObjectStorage, log: MessageLog, tmp_path: Path) -> None:
    list(steps(log, storage))
    files = [each for each in log.log.segments() if each.closed]
    number = (files[2].last_index + files[3].last_index) // 2  # message n has the time of second n, and is entry n + 1
    until = datetime.fromtimestamp((BEGIN_MS + number * 1000) / 1000, UTC).isoformat()
    given = [URL, f"n0={tmp_path / 'n0'}", "--peers", "n0@127.0.0.1:1", "--endpoint-url", storage.url]
    result = CliRunner().invoke(app, ["restore", *given, "--until", until, "--json"])
    assert result.exit_code == 0, result.exception
    assert files[2].last_index < json.loads(result.stdout)["restored_index"] == number + 1 < files[3].last_index
