"""A store that answers nothing: producers, and consumers of messages in the local log, do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage
from tests.support.running_broker import broker_client, limited, pull_ext, running
from tests.support.short_logs import MIB, SMALL, fill
from tests.support.waiting import until

LIMITS = limited(
    archive={"look_seconds": 0.05, "retry_seconds": 0.05, "retry_seconds_max": 0.2, "check_seconds": 0.2},
    upkeep={"raise_level_seconds": 0.01},
)
URL = f"s3://{BUCKET}/broker-a"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_storage() as found:
        yield found


def settings(storage: ObjectStorage, **given: Any) -> dict[str, Any]:
    return (
        SMALL
        | {
            "retention_bytes": None,
            "archive_url": URL,
            "archive_endpoint_url": storage.url,
            "archive_bytes_per_second": 0,
        }
        | given
    )


@pytest.mark.slow
async def test_stuck_store_does_not_delay_new_messages(tmp_path: Path, storage: ObjectStorage) -> None:
    """The store answers nothing at all, which is worse than 5 s a request: so no answer can have waited for it."""
    archive = {"read_wait_seconds": 600.0, "read_answer_seconds": 600.0}
    limits = limited(archive={"check_seconds": 600.0} | archive, upkeep={"raise_level_seconds": 0.01})
    given = settings(storage, local_retention_bytes=MIB, archive_cache_bytes=0)
    async with broker_client(tmp_path, queues=1, limits=LIMITS, **given) as client:
        await fill(client)

        async def is_shorter() -> bool:
            return int((await client.info())["raftmq.baseIndex"]) >= 8

        await until(is_shorter)
    answers = threading.Event()
    asked = []

    def answers_nothing(method: str, path: str) -> None:
        asked.append(path)
        answers.wait(120)

    async with running(tmp_path, limits=limits, **given) as broker:
        client, cold = await broker.connect(), await broker.connect()
        storage.fault = answers_nothing
        waiting = [await cold.post(RequestCode.PULL_MESSAGE, pull_ext(offset=each)) for each in range(10)]
        await until(lambda: len(asked) > 0)
        end = await client.offset(RequestCode.GET_MAX_OFFSET)
        for number in range(50):
            assert (await client.send(body=b"%d" % number)).code == 0
            assert (await client.pull(offset=end + number)).records[0].body == b"%d" % number
        info = await client.info()
        assert int(info["raftmq.archiveReadsWaiting"]) == len(waiting), "none of them was answered meanwhile"
        assert not answers.is_set()
        assert len(asked) <= 4, "one for each thread that reads the archive"
        answers.set()
        storage.come_back()
        for opaque in waiting:
            assert (await cold.answer(opaque)).code == ResponseCode.SUCCESS
