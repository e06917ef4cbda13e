"""Messages in several queues, for readers of whole topics."""

from __future__ import annotations

from mq.protocol.codes import RequestCode
from tests.support.running_broker import Client, properties, send_ext


async def sent(client: Client, count: int, queues: int = 3, body_bytes: int = 100, topic: str = "T") -> None:
    """Messages sent to the queues in turn; every second one of a queue is tagged "even"."""
    posted = [
        await client.post(
            RequestCode.SEND_MESSAGE_V2,
            send_ext(topic, e=n % queues, i=properties(TAGS="odd" if n // queues % 2 else "even", n=str(n))),
            b"%06d" % n * (body_bytes // 6),
        )
        for n in range(count)
    ]
    assert [(await client.answer(opaque)).code for opaque in posted] == [0] * count
