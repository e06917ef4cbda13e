"""Returns the members of a consumer group: their addresses, and the queues that they have now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.inspection.catalogue import CatalogueAdmin, each_of
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.requests.consumer_groups import ClientConnectionData
from mq.protocol.requests.relayed import ProcessQueueInfo, read_member_queues
from mq.protocol.requests.removed_members import KeptOutMember


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its broker knows it. ``queues`` are those that the member itself reports; None if it reports none.

    ``subscribes`` are its topics and expressions as text; None from a broker that does not report them for each member,
    like Apache RocketMQ's.
    """

    client: ClientConnectionData
    queues: Mapping[MessageQueue, ProcessQueueInfo] | None
    subscribes: str | None = None

    @property
    def takes_no_queues(self) -> bool:
        """Whether the member pops, or is behind a proxy, and so has no queues."""
        return self.client.subscriptions is not msgspec.UNSET

    @property
    def unfinished_count(self) -> int | None:
        """The number of messages that the member has fetched and not finished; None if it reports no queues."""
        return None if self.queues is None else sum(each.cached_msg_count for each in self.queues.values())

    def as_json(self) -> dict[str, object]:
        """Return the member for JSON."""
        rows = self.client.subscriptions
        queues = None if self.queues is None else [queue_text(queue) for queue in self.queues]
        return {
            "client_id": self.client.client_id,
            "address": self.client.client_addr,
            "language": self.client.language,
            "version": self.client.version,
            "queues": queues,
            "unfinished": self.unfinished_count,
            "behind_proxy": self.takes_no_queues,
            "subscriptions": None
            if rows is msgspec.UNSET
            else [f"{topic} {expression}" for topic, expression, _ in rows],
            "subscribes": self.subscribes,
        }


def disagreement(members: Iterable[Member]) -> list[str]:
    """Return the subscriptions of the members, a line each, if they are known to differ; else nothing."""
    texts = {each.client.client_id: each.subscribes or "nothing" for each in members if each.subscribes is not None}
    return [f"{client_id}: {text}" for client_id, text in texts.items()] if len(set(texts.values())) > 1 else []


async def members_of(admin: CatalogueAdmin, group: str) -> list[Member]:
    """Return all members, by client id, with the queues that each reports. One request per broker group.

    Brokers that do not know that request, or an account that may not make it, are asked for each member. Raises
    ClientError.
    """
    try:
        response = await admin.members_of_groups([group], queues=True)
    except BrokerError as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        return [Member(client, None) for client in await admin.group_members(group)]
    if response is not None:
        return [
            Member(each.client, _queues(each.running_info), each.subscribes) for each in response.groups.get(group, ())
        ]
    clients = {each.client_id: each for each in await admin.group_members(group)}

    async def ask(client_id: str) -> Mapping[MessageQueue, ProcessQueueInfo]:
        return await admin.member_queues(group, client_id)

    # Missing are the queues of a client that pops, of an old one, and of one that hangs.
    queues = await each_of([name for name, each in clients.items() if each.subscriptions is msgspec.UNSET], ask)
    return [Member(clients[name], queues.get(name)) for name in sorted(clients)]


def _queues(running_info: str | None) -> dict[MessageQueue, ProcessQueueInfo] | None:
    """The queues in a member's report; None if that cannot be read."""
    if running_info is None:
        return None
    try:
        infos = read_member_queues(running_info.encode())
    except BodyError:
        return None
    return {MessageQueue(ref.topic, ref.broker_name, ref.queue_id): infos[ref] for ref in sorted(infos)}


def removal_means(members: Collection[str], seconds: float) -> list[str]:
    """Return the consequences of removing one of these members, as clauses that continue a sentence after its name."""
    others = len(members) - 1
    who = "nobody consumes for the group then" if others < 1 else f"{others} other members take its queues"
    return [
        f"leaves it and stays out for {seconds:g} s: {who};",
        "what it has fetched and not finished comes again, to others; its process goes on running.",
    ]


def removed_member_text(member: KeptOutMember) -> str:
    """Name a removed member, the seconds until it may join again, and the reason."""
    who = f" by {member.operator}" if member.operator else ""
    why = f": {member.reason}" if member.reason else ""
    where = "" if member.connected else " (not connected)"
    return f"{member.client_id}{where} was removed{who} and stays out for {member.seconds:.0f} s more{why}"


def queue_text(queue: MessageQueue) -> str:
    """Format topic, broker group and queue id: ``Orders broker-a/3``."""
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
