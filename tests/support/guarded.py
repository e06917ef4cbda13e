"""A broker with accounts, and its administrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mq.broker.state.format_level import LEVEL_OF_USERS
from tests.support.running_broker import Client, RunningBroker, running

FILE = "accounts: [{accessKey: administrator, secretKey: admin-SECRET, admin: true}]"
ADMIN = ("administrator", "admin-SECRET")
USER = ("orders", "user-SECRET-1")


@asynccontextmanager
async def guarded(
    tmp_path: Path, *, level: int = LEVEL_OF_USERS, **given: Any
) -> AsyncIterator[tuple[RunningBroker, Client]]:
    """A broker at this format level with one administrator, connected, and the topic T."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    async with running(tmp_path / "n0", keys=ADMIN, acl_file=path, **given) as broker:
        admin = await connect(broker, ADMIN)
        await admin.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= level)
        await admin.create_topic("T", 1)
        yield broker, admin


async def connect(broker: RunningBroker, keys: tuple[str, str]) -> Client:
    client = await broker.connect()
    client.keys = keys
    return client
