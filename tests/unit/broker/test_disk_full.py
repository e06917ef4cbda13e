"""A leader whose disk has no room left: sends are refused, everything else goes on, and sends do again with room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
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
            assert [record.body for record in (await client.pull()).records] == [b"before"]
            assert await client.offset(RequestCode.GET_MAX_OFFSET) == 1
            assert (await client.info())["raftmq.pendingBytes"] == "0"
        assert RaftCore.propose is propose
        assert (await client.send(body=b"after")).ext["queueOffset"] == "1"
