"""Codecs whose libraries are not installed, as after `pip install raftmq`: what producers and consumers do."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from mq.client import Codec, CodecNotInstalled, Producer
from mq.client.logs import log
from mq.client.net.replies import received_messages
from mq.protocol.codes import RequestCode
from mq.protocol.messages.compression import deflate
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, offset_of, stored, take
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_messages import StoredMessage

Uninstall = Callable[[], None]

PULL = RequestCode.PULL_MESSAGE
MODULES = ("lz4", "lz4.frame", "zstandard")


@pytest.fixture
def uninstall(monkeypatch: pytest.MonkeyPatch) -> Uninstall:
    """Makes imports of the codecs' libraries fail from now on."""

    def uninstalled() -> None:
        for module in MODULES:
            monkeypatch.setitem(sys.modules, module, None)

    return uninstalled


def compressed(codec: Codec, body: bytes) -> StoredMessage:
    flag, content = deflate(codec, body)
    assert flag, "the body became smaller"
    properties = f"UNIQ_KEY\x01{body[:8].decode()}\x02"
    return StoredMessage(content, properties, sys_flag=flag, flag=0, born_timestamp_ms=1_600_000_000_000)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_producer_refuses_codec_that_is_not_installed(codec: Codec, uninstall: Uninstall) -> None:
    Producer("127.0.0.1:9", "g", compress=codec)
    uninstall()
    with pytest.raises(CodecNotInstalled, match=rf"pip install 'raftmq\[{codec}\]'") as caught:
        Producer("127.0.0.1:9", "g", compress=codec)
    assert caught.value.codec == codec
    Producer("127.0.0.1:9", "g", compress="zlib")


def test_producer_refuses_codec_that_does_not_exist() -> None:
    unknown: Codec = "brotli"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="compress 'brotli' is not one of zlib, lz4, zstd, nor None"):
        Producer("127.0.0.1:9", "g", compress=unknown)


@pytest.mark.anyio
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_consumer_waits_at_a_message_with_a_missing_codec(
    cluster: FakeCluster, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.group.append("T", 0, stored(b"first"))
    cluster.group.append("T", 0, compressed(codec, b"second  " * 600))
    told: list[str] = []
    monkeypatch.setattr(log, "error", lambda event, **fields: told.append(f"{event}: {fields['reason']}"))
    with monkeypatch.context() as without:
        for module in MODULES:
            without.setitem(sys.modules, module, None)
        async with consumer_of(cluster) as consumer:
            consumer.subscribe("T")
            stream = consumer.deliveries()
            first = await anext(stream)
            first.ack()
            pulls = cluster.leader.count(PULL)
            await until(lambda: cluster.leader.count(PULL) >= pulls + 3)
    remedy = f"bodies compressed with {codec} need another package: pip install 'raftmq[{codec}]'"
    assert told == [f"body_not_inflated: {remedy}"]
    assert (first.message.body, offset_of(cluster)) == (b"first", 1), "what was before it is consumed"
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        [second] = await take(consumer, 1)
        assert second.body == b"second  " * 600, "what could not be read is still there"


def test_message_without_codec_library_names_the_package(uninstall: Uninstall) -> None:
    record = compressed("zstd", b"second  " * 600).record("T", 0, 7)
    [found] = received_messages("b", memoryview(record))
    assert found.body == b"second  " * 600
    uninstall()
    with pytest.raises(CodecNotInstalled, match=r"raftmq\[zstd\]"):
        received_messages("b", memoryview(record))
