"""What changes the metadata, at a broker whose log does not take it: bounded as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.write_path.appender import Appender
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.queue_locks import lock_body
from tests.support.running_broker import broker_client, limited

COMMIT = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
REQUESTS: list[tuple[int, dict[str, Any] | None, bytes]] = [
    (RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT, b""),
    (RequestCode.LOCK_BATCH_MQ, None, lock_body("c2", 1)),
    (RequestCode.UNLOCK_BATCH_MQ, None, lock_body("c1", 0)),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "U", "defaultTopic": "TBW102", "readQueueNums": 1,
     "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}, b""),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"H"}'),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, b""),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "G", "timestamp": 0, "isForce": True}, b""),
    (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": True}, b""),
    (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"topic": "T", "group": "G", "readable": False}, b""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "body"), REQUESTS, ids=[RequestCode(row[0]).name for row in REQUESTS])
async def test_changes_are_refused_while_too_much_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, ext: dict[str, Any] | None, body: bytes
) -> None:
    stalled: list[Appender] = []
    start_round = Appender.start_round

    def noted(appender: Appender) -> bool:
        stalled.append(appender)
        return start_round(appender)

    monkeypatch.setattr(Appender, "start_round", noted)
    async with broker_client(tmp_path, queues=2, uncommitted_bytes_max=2**20) as client:
        await client.fill(1)
        await client.request(RequestCode.LOCK_BATCH_MQ, body=lock_body("c1", 0))
        await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT | {"commitOffset": 0})
        with monkeypatch.context() as patched:
            patched.setattr(Appender, "start_round", lambda appender: False)
            assert await client.alive()
            stalled[0].pending_bytes += 2**21 + 1
            before = (await client.info())["raftmq.pendingBytes"]
            answer = await client.request(code, ext, body)
            assert (answer.code, answer.body) == (ResponseCode.SYSTEM_BUSY, b""), answer
            assert (await client.info())["raftmq.pendingBytes"] == before
            stalled[0].pending_bytes -= 2**21 + 1
        assert (await client.request(code, ext, body)).code == ResponseCode.SUCCESS


async def test_answered_commit_is_never_dropped_under_overload(tmp_path: Path) -> None:
    limits = limited(consume={"commits_pending_max": 1})
    async with broker_client(tmp_path, queues=2, offset_commit_seconds=1000, limits=limits) as client:
        for queue_id in (0, 1):
            await client.fill(1, queue_id=queue_id)
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT, oneway=True)
        answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT | {"queueId": 1})
        assert answer.code == ResponseCode.SUCCESS
        assert [await client.committed(queue_id=queue_id) for queue_id in (0, 1)] == [1, 1]
