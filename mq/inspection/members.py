"""The members of a consumer group: where they are, and which queues they have now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.client.message import MessageQueue
from mq.protocol.requests.consumer_groups import ClientConnectionData
from mq.protocol.requests.relayed import ProcessQueueInfo
from mq.protocol.requests.removed_members import KeptOutMember

ANSWER_SECONDS: Final = 3.0
ASKED_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its broker knows it; ``queues`` as it says itself, None if it does not say."""

    client: ClientConnectionData
    queues: Mapping[MessageQueue, ProcessQueueInfo] | None

    @property
    def subscriptions(self) -> list[str] | None:
        """Its own, each as a topic and an expression, if it pops or is behind a proxy; other members share those of
        the group, and this is None.
        """
        rows = self.client.subscriptions
        if rows is msgspec.UNSET:
            return None
        return [f"{topic} {expression}" for topic, expression, _ in rows]

    @property
    def unfinished(self) -> int | None:
        """Messages that it has fetched and not finished."""
        return None if self.queues is None else sum(each.cached_msg_count for each in self.queues.values())

    def as_json(self) -> dict[str, object]:
        """As JSON."""
        queues = None if self.queues is None else [queue_text(queue) for queue in self.queues]
        return {
            "client_id": self.client.client_id,
            "address": self.client.client_addr,
            "language": self.client.language,
            "version": self.client.version,
            "queues": queues,
            "unfinished": self.unfinished,
            "behind_proxy": self.subscriptions is not None,
            "subscriptions": self.subscriptions,
        }


def disagreement(members: Iterable[Member]) -> list[str]:
    """What members behind proxies subscribe to, a line each, if it differs; empty if they agree."""
    told = {
        member.client.client_id: ", ".join(subscriptions) or "nothing"
        for member in members
        if (subscriptions := member.subscriptions) is not None
    }
    return [f"{client_id}: {text}" for client_id, text in told.items()] if len(set(told.values())) > 1 else []


async def members_of(admin: Admin, group: str) -> list[Member]:
    """All members, by client id; some are asked for their queues at once. Raises ClientError."""
    found: dict[str, Member] = {}
    limiter = trio.CapacityLimiter(ASKED_AT_ONCE)

    async def ask(client: ClientConnectionData) -> None:
        queues: Mapping[MessageQueue, ProcessQueueInfo] | None = None
        async with limiter:
            if client.subscriptions is msgspec.UNSET:  # those behind a proxy have no queues
                with trio.move_on_after(ANSWER_SECONDS):
                    try:
                        queues = await admin.member_queues(group, client.client_id)
                    except ClientError:
                        queues = None  # a client that pops, an old one, or one that hangs
        found[client.client_id] = Member(client, queues)

    async with trio.open_nursery() as nursery:
        for client in await admin.group_members(group):
            nursery.start_soon(ask, client)
    return [found[client_id] for client_id in sorted(found)]


def removal_means(members: Collection[str], seconds: float) -> list[str]:
    """What it means that one of these members is removed, a clause each, that goes on from its name."""
    others = len(members) - 1
    who = "nobody consumes for the group then" if others < 1 else f"{others} other members take its queues"
    return [
        f"leaves it and stays out for {seconds:g} s: {who};",
        "what it has fetched and not finished comes again, to others; its process goes on running.",
    ]


def kept_out_words(kept: KeptOutMember) -> str:
    """Who is kept out, for how long, and why."""
    who = f" by {kept.operator}" if kept.operator else ""
    why = f": {kept.reason}" if kept.reason else ""
    where = "" if kept.connected else " (not connected)"
    return f"{kept.client_id}{where} was removed{who} and stays out for {kept.seconds:.0f} s more{why}"


def queue_text(queue: MessageQueue) -> str:
    """Topic, broker group and number: ``Orders broker-a/3``."""
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
