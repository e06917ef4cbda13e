"""Messages that a broker stores at given times, and the search for them by time."""

from __future__ import annotations

from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Answer, Client

BEGIN_MS = 1_700_000_000_000


class Clock:
    """What the broker takes for the time of day."""

    now_ms = BEGIN_MS

    def __call__(self) -> int:
        return self.now_ms


async def stored(client: Client, clock: Clock, *seconds: int, queue_id: int = 0) -> list[int]:
    """Send a message at each of these times; returns their physical offsets."""
    places = []
    for number, second in enumerate(seconds):
        clock.now_ms = BEGIN_MS + 1000 * second
        answer = await client.send(body=b"%d" % number, e=queue_id)
        assert answer.code == ResponseCode.SUCCESS, answer
        places.append(int(answer.ext["msgId"][16:], 16))
    return places


async def by_time(client: Client, ms: int, **given: object) -> Answer:
    ext = {"topic": "T", "queueId": 0, "timestamp": ms, **given}
    return await client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
