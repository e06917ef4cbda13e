"""The stored messages of a broker, and their number."""

from __future__ import annotations

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from tests.support.running_broker import Client
from tests.support.waiting import until


async def stored(client: Client, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """All messages of a queue."""
    records: list[StoredMessage] = []
    while (answer := await client.pull(topic, queue_id, len(records))).code == ResponseCode.SUCCESS:
        records += answer.records
    return records


async def wait_stored(client: Client, count: int, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """All messages of a queue, once there are so many."""

    async def there() -> bool:
        return await client.offset(RequestCode.GET_MAX_OFFSET, topic, queue_id) >= count

    await until(there)
    return await stored(client, topic, queue_id)


async def figure(client: Client, name: str) -> int:
    return int((await client.info())[f"raftmq.{name}"])
