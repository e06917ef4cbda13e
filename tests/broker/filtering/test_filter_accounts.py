"""Filter servers before brokers with accounts: the broker judges who may pull, and who may upload a filter."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from mq.client import Credentials, Message, Producer, PushConsumer, WasmFilter
from mq.client.net.client_core import RemotingSettings
from mq.filter.programs import CLASS_FILTER, name_of
from mq.protocol.access.signing import signed
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PullExt
from mq.protocol.wire.encoding import encode_request
from mq.testing import Kit, open_kit
from tests.support.filter_servers import begins_with, filter_server
from tests.support.waiting import until

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


async def test_checked_permission_belongs_to_its_account(tmp_path: Path) -> None:
    """Two accounts share a connection: that one of them may pull says nothing of the other."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    name = name_of("wasm", begins_with("a"))
    fields = PullExt(
        consumer_group="billing",
        topic="Orders",
        queue_id=0,
        queue_offset=QueueOffset(0),
        max_messages=1,
        sys_flag=4 | CLASS_FILTER,
        commit_offset=QueueOffset(0),
        suspend_timeout_ms=0,
        sub_version=0,
        subscription=name.text,
    ).fields()
    async with open_kit(acl_file=path) as kit:
        async with Producer(kit.namesrv, remoting=ADMIN) as producer:
            await producer.send(Message("Orders", b"apple"))
        async with filter_server(kit, "Orders", remoting=ADMIN) as address:
            async with consumer_of(kit, UPLOADS) as consumer:
                await anext(aiter(consumer))
            host, _, port = address.rpartition(":")
            codes: list[int] = []
            stream = await trio.open_tcp_stream(host, int(port))
            for key, secret in (("uploads", "user-SECRET-1"), ("nobody", "guessed"), ("consumes", "guessed")):
                ext = signed(key, secret, fields, b"")
                await stream.send_all(encode_request(RequestCode.PULL_MESSAGE, len(codes) + 1, ext=ext))
                frame = await stream.receive_some(65536)
                header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
                codes.append(header["code"])
            await stream.aclose()
    assert codes[1:] == [ResponseCode.NO_PERMISSION] * 2
    assert codes[0] != ResponseCode.NO_PERMISSION


async def test_uploading_a_filter_needs_its_own_permission(tmp_path: Path) -> None:
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
