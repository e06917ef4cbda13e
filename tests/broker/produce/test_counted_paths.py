"""How many messages took which form of the send path: a test that never uses the shipped form must be able to tell."""

from __future__ import annotations

from mq.compiled import IS_COMPILED
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Client, properties, send_ext
from tests.support.send_paths import batched

PLAIN = properties(UNIQ_KEY="0A0B", TAGS="a")


async def counted(client: Client) -> tuple[int, int]:
    """Messages of the compiled send path, and all others with the commands."""
    info = await client.info()
    compiled = int(info["raftmq.messagesCompiled"])
    return compiled, int(info["raftmq.messages"]) - compiled


async def test_broker_counts_the_messages_of_each_send_path(client: Client) -> None:
    await client.create_topic("T", 4)
    assert (await client.send(i=PLAIN)).code == ResponseCode.SUCCESS  # the first one opens the topic
    before = await counted(client)
    assert before[0] == 0
    batch = batched(b"one", PLAIN) + batched(b"two", PLAIN)
    assert (await client.send(i=PLAIN)).code == ResponseCode.SUCCESS
    answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, send_ext(m=True), batch)
    assert answer.code == ResponseCode.SUCCESS
    assert (await client.send(i=properties(TAGS="a"))).code == ResponseCode.SUCCESS  # without a unique key
    plain = 3 if IS_COMPILED else 0
    assert await counted(client) == (plain, before[1] + 4 - plain)
