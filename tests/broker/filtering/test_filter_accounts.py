"""Filter servers before brokers with accounts: the broker judges who may pull, and who may upload a filter."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import Credentials, Message, Producer, PushConsumer, WasmFilter
from mq.client.net.client_core import RemotingSettings
from mq.testing import Kit, open_kit
from tests.support.filter_servers import begins_with, filter_server
from tests.support.waiting import until

pytestmark = pytest.mark.trio

FILE = """
accounts:
- {accessKey: administrator, secretKey: admin-SECRET, admin: true}
- {accessKey: uploads, secretKey: user-SECRET-1, topicPerms: [Orders=SUB], groupPerms: [billing=SUB|FILTER]}
- {accessKey: consumes, secretKey: user-SECRET-2, topicPerms: [Orders=SUB], groupPerms: [billing=SUB]}
"""


def remoting(access_key: str, secret_key: str) -> RemotingSettings:
    return RemotingSettings(credentials=Credentials(access_key, secret_key), tls=None)


ADMIN = remoting("administrator", "admin-SECRET")
UPLOADS = remoting("uploads", "user-SECRET-1")
CONSUMES = remoting("consumes", "user-SECRET-2")
STRANGER = remoting("uploads", "another-SECRET")


def consumer_of(kit: Kit, settings: RemotingSettings) -> PushConsumer:
    consumer = PushConsumer(kit.namesrv, group="billing", consume_from="first", remoting=settings)
    consumer.subscribe("Orders", filter=WasmFilter(begins_with("a")))
    return consumer


async def trouble(kit: Kit, settings: RemotingSettings, text: str) -> None:
    """The consumer gets nothing, for this reason."""
    async with consumer_of(kit, settings) as consumer:
        await until(lambda: text in str(consumer.health()), seconds=60)


async def test_uploading_needs_a_permission_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    async with open_kit(acl_file=path) as kit:
        async with Producer(kit.namesrv, remoting=ADMIN) as producer:
            for body in (b"apple", b"bread"):
                await producer.send(Message("Orders", body))
        async with filter_server(kit, "Orders", remoting=ADMIN):
            await trouble(kit, CONSUMES, "no permission FILTER for consumer group billing")
            await trouble(kit, STRANGER, "signature does not match")
            for settings in (UPLOADS, CONSUMES):  # once it is there, the others may use it
                async with consumer_of(kit, settings) as consumer:
                    with trio.fail_after(60):
                        assert (await anext(aiter(consumer))).body == b"apple"
