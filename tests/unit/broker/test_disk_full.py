"""A leader whose disk has no room left: sends are refused, everything else goes on, and sends do again with room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.state.metadata import Metadata
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import SCHEDULE_TOPIC
from mq.store.checkpoint import load_checkpoint
from raftlog import Refusal
from raftlog.consensus.raft import RaftCore
from tests.unit.broker.running import running, send_ext

pytestmark = pytest.mark.trio


async def test_disk_full_sends_are_refused_reads_go_on_and_room_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = RaftCore.propose
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.create_topic("T", 1)).code == 0
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


async def test_what_a_leader_says_of_itself_is_said_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first topics, and its address, without which followers cannot hand on."""
    monkeypatch.setattr("mq.broker.server._EXPIRE_CLIENTS_SECONDS", 0.05)
    propose, refused = RaftCore.propose, 0

    def full_at_first(core: RaftCore, *given: Any) -> int | Refusal:
        nonlocal refused
        refused += 1
        return Refusal.DISK_FULL if refused <= 2 else propose(core, *given)

    monkeypatch.setattr(RaftCore, "propose", full_at_first)
    async with running(tmp_path) as broker:
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
