"""What clients send a broker about lite topics."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mq.broker.limits import BrokerLimits
from mq.broker.state.format_level import LEVEL_NEWEST
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from mq.protocol.properties import LITE_OFFSET, LITE_TOPIC
from mq.protocol.requests.lite_attributes import BIND_TOPIC
from tests.support.running_broker import FAST, Answer, Client, properties, running
from tests.support.waiting import until

PARENT, GROUP = "Sessions", "agents"
MINUTE_MS = 60_000
_numbers = itertools.count(1)


async def prepared(client: Client, *, queues: int = 2, group: dict[str, str] | None = None, **topic: str) -> None:
    """Create a topic for lite topics, and a group that is bound to it, once the group of replicas allows it."""

    async def is_upgraded() -> bool:
        return (await client.info())["raftmq.formatLevel"] == str(LEVEL_NEWEST)

    await until(is_upgraded)
    attributes = ",".join(f"+{name}={value}" for name, value in {"message.type": "LITE", **topic}.items())
    answer = await client.create_topic(PARENT, queues, attributes=attributes)
    assert answer.code == ResponseCode.SUCCESS, answer
    answer = await put_group(client, **(group or {}))
    assert answer.code == ResponseCode.SUCCESS, answer


@asynccontextmanager
async def lite_client(
    directory: Path, *, group: dict[str, str] | None = None, limits: BrokerLimits = FAST
) -> AsyncIterator[Client]:
    """A client of a broker that has the topic and the group of `prepared`."""
    async with running(directory, limits=limits, group="b-a") as broker:
        client = await broker.connect()
        await prepared(client, group=group)
        yield client


async def put_group(client: Client, name: str = GROUP, **attributes: str) -> Answer:
    """Create a group that is bound to the topic, with further attributes."""
    bound = {f"+{key}": value for key, value in {BIND_TOPIC: PARENT, **attributes}.items()}
    body = json.dumps({"groupName": name, "attributes": bound}).encode()
    return await client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


async def send(client: Client, lite: str, body: bytes, **given: Any) -> Answer:
    """Send a message to a lite topic."""
    named = {LITE_TOPIC: lite, "UNIQ_KEY": f"K{next(_numbers)}"} | given.pop("named", {})
    return await client.send(PARENT, body, i=properties(**named), **given)


async def control(client: Client, action: str, *lites: str, client_id: str = "C", **given: Any) -> Answer:
    """Say what a client subscribes to."""
    entry = {"action": action, "clientId": client_id, "group": GROUP, "topic": PARENT, "liteTopicSet": list(lites)}
    body = json.dumps({"subscriptionSet": [entry | given]}).encode()
    return await client.request(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)


def pop_ext(client_id: str = "C", **given: Any) -> dict[str, Any]:
    """The fields of a pop; by default of one that is not held."""
    fields: dict[str, Any] = {
        "clientId": client_id,
        "consumerGroup": GROUP,
        "topic": PARENT,
        "maxMsgNum": 32,
        "invisibleTime": MINUTE_MS,
        "pollTime": 0,
        "bornTime": 0,
    }
    return fields | given


async def pop(client: Client, client_id: str = "C", **given: Any) -> Answer:
    """Pop what a client subscribes to."""
    return await client.request(RequestCode.POP_LITE_MESSAGE, pop_ext(client_id, **given))


def told(answer: Answer) -> list[tuple[str, bytes, int]]:
    """Lite topic, body and number of earlier deliveries of the messages in an answer."""
    counts = answer.ext["orderCountInfo"].split(";") if answer.body else []
    records = answer.records if answer.body else []
    assert len(counts) == len(records), answer
    return [
        (message.properties[LITE_TOPIC], message.body, int(count))
        for message, count in zip(records, counts, strict=True)
    ]


def receipt(answer: Answer, message: StoredMessage) -> dict[str, Any]:
    """The fields that name a message, as RocketMQ's clients build them."""
    offset = int(message.properties[LITE_OFFSET])
    times = f"{answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']}"
    return {
        "consumerGroup": GROUP,
        "topic": PARENT,
        "queueId": 0,
        "offset": offset,
        "extraInfo": f"0 {times} 0 b-a 0 {offset}",
        "liteTopic": message.properties[LITE_TOPIC],
    }


async def ack(client: Client, answer: Answer, code: int = RequestCode.ACK_MESSAGE) -> list[int]:
    """Acknowledge all messages of an answer; returns the codes of the answers."""
    return [(await client.request(code, receipt(answer, message))).code for message in answer.records]
