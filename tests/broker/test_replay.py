"""Whatever clients did: a broker that replays its log comes to the state of the one that lived through it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from mq.protocol.messages.delay import DELAY_LEVELS_MS
from tests.support.group_clients import TOPICS, Clients, held
from tests.support.running_broker import broker_client, broker_settings, running

SMALL = {"segment_bytes": 256 * 1024, "message_bytes_max": 64 * 1024, "entry_bytes_max": 2048}


@pytest.mark.parametrize("seed", [1, 2])
async def test_replay_reaches_the_same_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("mq.broker.schedule.level_delivery.DELAY_LEVELS_MS", (0, *DELAY_LEVELS_MS[1:]))
    live, crashed, scratch = (tmp_path / name for name in ("live", "crashed", "scratch"))
    address = broker_settings(live).listen  # it is part of the metadata
    async with broker_client(live, checkpoint_seconds=0.2, listen=address, **SMALL) as client:
        clients = Clients(client, random.Random(seed))
        for topic in TOPICS:
            await client.create_topic(topic, 3)
        for _ in range(150):
            await clients._rng.choice(clients.deeds)()
        # What is due and not delivered yet stays so from here on.
        monkeypatch.setattr("mq.broker.schedule.delivery.Delivery.run", lambda *_: None)
        await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")
        assert int((await client.info())["raftmq.delayedDelivered"]) > 0
        assert int((await client.info())["raftmq.timersDelivered"]) > 0
        for copy in (crashed, scratch):
            # A checkpoint that is being written may be gone before it is copied.
            shutil.copytree(live, copy, ignore=shutil.ignore_patterns("checkpoint.tmp"))
    (scratch / "checkpoint").unlink()
    shutil.rmtree(scratch / "queues")
    for directory in (crashed, scratch):
        async with running(directory, listen=address, **SMALL):
            pass
    assert held(crashed) == held(scratch)
    assert held(live) == held(scratch)
