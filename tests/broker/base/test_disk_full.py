"""A leader whose disk has no room left: sends are refused, everything else goes on, and sends do again with room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mq.broker.state.metadata import Metadata
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import SCHEDULE_TOPIC
from mq.store.checkpoint import load_checkpoint
from raftlog import Refusal
from raftlog.consensus.raft import RaftCore
from tests.support.running_broker import broker_client, limited, running, send_ext


async def test_disk_full_refuses_sends_but_serves_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    propose = RaftCore.propose
    async with broker_client(tmp_path, queues=1) as client:
        assert (await client.send(body=b"before")).ext["queueOffset"] == "0"

        def full(core: RaftCore, *given: Any) -> int | Refusal:
            return Refusal.DISK_FULL

        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", full)
            waiting = [await client.post(RequestCode.SEND_MESSAGE_V2, send_ext()) for _ in range(5)]
            for opaque in waiting:
                answer = await client.answer(opaque)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert answer.remark is not None
                assert answer.remark.startswith("DISK_FULL: service not available now.")
                assert "the broker's disk is full [CL:  0." in answer.remark
            answer = await client.create_topic("U", 1)
            assert (answer.code, "DISK_FULL" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            answer = await client.send("Unheard")
            assert (answer.code, "DISK_FULL" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            assert [record.body for record in (await client.pull()).records] == [b"before"]
            assert await client.offset(RequestCode.GET_MAX_OFFSET) == 1
            assert (await client.info())["raftmq.pendingBytes"] == "0"
        assert RaftCore.propose is propose
        assert (await client.send(body=b"after")).ext["queueOffset"] == "1"


async def test_disk_full_offsets_and_locks_are_refused_and_connections_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_client(tmp_path, queues=2, offset_commit_seconds=60) as client:
        for queue_id in (0, 1):
            await client.fill(1, queue_id=queue_id)
        await client.heartbeat("c", "G")
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        queues = [{"brokerName": "broker-a", "queueId": queue_id, "topic": "T"} for queue_id in (0, 1)]
        lock = json.dumps({"clientId": "c", "consumerGroup": "G", "mqSet": queues[:1]}).encode()
        other = json.dumps({"clientId": "c", "consumerGroup": "G", "mqSet": queues[1:]}).encode()
        clone = {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": True}
        forbid = {"group": "G", "topic": "T", "readable": False}
        reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": True, "offset": 0, "queueId": 0}
        requests: list[tuple[RequestCode, dict[str, Any] | None, bytes]] = [
            (RequestCode.UPDATE_CONSUMER_OFFSET, commit, b""),
            (RequestCode.LOCK_BATCH_MQ, None, lock),
            (RequestCode.UNLOCK_BATCH_MQ, None, other),
            (RequestCode.CLONE_GROUP_OFFSET, clone, b""),
            (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid, b""),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, b""),
        ]
        assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"queueId": 1})).code == 0
        assert (await client.request(RequestCode.LOCK_BATCH_MQ, None, other)).code == 0
        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", lambda core, *given: Refusal.DISK_FULL)
            for code, ext, body in requests:
                answer = await client.request(code, ext, body)
                assert (code, answer.code) == (code, ResponseCode.SERVICE_NOT_AVAILABLE)
                assert (answer.remark or "").startswith("DISK_FULL: ")
            # What was noted with a pull cannot be stored either; then the stored offset counts.
            await client.pull(sysFlag=1 | 4, commitOffset=1)
            assert await client.committed(setZeroIfNotFound=False) is None
            assert (await client.info())["raftmq.pendingBytes"] == "0"
        for code, ext, body in requests:
            assert (await client.request(code, ext, body)).code == ResponseCode.SUCCESS, code


async def test_leader_announces_itself_once_the_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first topics, and its address, without which followers cannot hand on."""
    propose, refused = RaftCore.propose, 0

    def full_at_first(core: RaftCore, *given: Any) -> int | Refusal:
        nonlocal refused
        refused += 1
        return Refusal.DISK_FULL if refused <= 2 else propose(core, *given)

    monkeypatch.setattr(RaftCore, "propose", full_at_first)
    often = limited(upkeep={"announce_again_seconds": 0.05})
    async with running(tmp_path, format_level_max=1, limits=often) as broker:  # no entry comes but these
        client = await broker.connect()
        await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")
        assert refused > 2
        assert (await client.send("Auto")).code == ResponseCode.SUCCESS
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint is not None
    metadata = Metadata()
    metadata.restore(checkpoint.state)
    assert metadata.replicas == {"n0": broker.settings.listen}
    assert SCHEDULE_TOPIC in metadata.topics


async def test_partly_failed_offset_clone_is_not_reported_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, refused = RaftCore.propose, False

    def full_once(core: RaftCore, *given: Any) -> int | Refusal:
        nonlocal refused
        if refused:
            return propose(core, *given)
        refused = True
        return Refusal.DISK_FULL

    async with broker_client(tmp_path, limits=limited(net={"slice_seconds": 0.0})) as client:
        for topic in ("T", "U"):
            await client.create_topic(topic, 1)
            await client.fill(5, topic)
            ext = {"consumerGroup": "G", "topic": topic, "queueId": 0, "commitOffset": 5}
            assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == ResponseCode.SUCCESS
        clone = {"srcGroup": "G", "destGroup": "H", "offline": True}
        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", full_once)
            answer = await client.request(RequestCode.CLONE_GROUP_OFFSET, clone)
            assert refused
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (answer.remark or "").startswith("DISK_FULL: ")
        assert (await client.request(RequestCode.CLONE_GROUP_OFFSET, clone)).code == ResponseCode.SUCCESS
        assert [await client.committed("H", topic) for topic in ("T", "U")] == [5, 5]
