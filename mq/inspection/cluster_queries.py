"""Queries a whole cluster with few requests. A result has the answers that arrived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from mq.client.errors import BrokerError, ClientError
from mq.client.net.replies import read_body
from mq.client.net.routes import LEADER_ID
from mq.inspection.catalogue import CatalogueAdmin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.accounts import AccountList
from mq.protocol.requests.bulk import LeaseList
from mq.protocol.requests.pending import AskPendingExt, PendingInfo, PendingKind
from mq.protocol.requests.topic_use import TopicUse
from mq.protocol.requests.topics import TopicExt
from mq.protocol.topic_ends import decode_ends, encode_topics

REPLICA_SECONDS: Final = 3.0
"""A replica that does not answer for so long is left out."""


class MessageCount(NamedTuple):
    """The number of messages in a topic, and the number of its queues."""

    messages: int
    queues: int


T = TypeVar("T")


async def unless_unknown(answer: Awaitable[T]) -> T | None:
    """Await the answer; None if the broker does not know the request, like Apache RocketMQ's or an earlier release."""
    try:
        return await answer
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise


@dataclass(slots=True)
class OfReplicas(Generic[T]):
    """The answers of all replicas, by broker group and address.

    Attributes:
        silent: replicas that did not answer.
        incapable: replicas that do not know the request, like Apache RocketMQ's or an earlier release.
    """

    answers: dict[str, T] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    incapable: list[str] = field(default_factory=list)


class QueryingAdmin(CatalogueAdmin):
    """An `Admin` for queries: it leaves out broker groups without a leader instead of waiting for one.

    Changes are made through an `Admin` that insists on every broker group.
    """

    async def _leaders(self, cluster: str | None, broker: str | None) -> dict[str, str]:
        info = await self.cluster_info()
        names = {name for each, names in info.clusters.items() if cluster in (None, each) for name in names}
        return {
            name: address
            for name in sorted(names)
            if broker in (None, name)
            and name in info.brokers
            and (address := info.brokers[name].broker_addrs.get(LEADER_ID)) is not None
        }

    async def message_counts(self, topics: Mapping[str, Sequence[str]]) -> dict[str, MessageCount] | None:
        """Return the number of messages of topics; ``topics`` names their broker groups. One request per broker group.

        None if a broker does not know the request, as those of Apache RocketMQ.
        """
        counts: dict[str, MessageCount] = {}
        for broker, address in (await self._leaders(None, None)).items():
            topics_of_broker = [topic for topic, brokers in topics.items() if broker in brokers]
            if not topics_of_broker:
                continue
            try:
                _, body = await self._open_core().call(
                    address, RequestCode.ASK_TOPIC_ENDS, {"current": "false"}, body=encode_topics(topics_of_broker)
                )
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return None
                raise
            for topic, ends in zip(topics_of_broker, read_body(decode_ends, body), strict=False):
                before = counts.get(topic, MessageCount(0, 0))
                count = sum(ends.ends) - sum(ends.firsts)
                counts[topic] = MessageCount(before.messages + count, before.queues + len(ends.ends))
        return counts

    async def topic_use(self, topic: str) -> dict[str, TopicUse] | None:
        """Return a topic's bytes and senders, by broker group, with one request per broker group that has the topic.

        None if a broker does not know the request, as those of Apache RocketMQ.
        """
        use_by_broker: dict[str, TopicUse] = {}
        ext = TopicExt(topic=topic).fields()
        for broker, address in (await self._leaders_of(topic)).items():
            response = await unless_unknown(self._open_core().call(address, RequestCode.ASK_TOPIC_USE, ext))
            if response is None:
                return None
            use_by_broker[broker] = read_body(TopicUse.decode, response[1])
        return use_by_broker

    async def accounts(self) -> OfReplicas[AccountList]:
        """Return the accounts in the files of all replicas. Raises BrokerError unless the user is an administrator."""
        return await self._of_replicas(RequestCode.LIST_ACCOUNTS, AccountList.decode)

    async def leases(self) -> OfReplicas[LeaseList]:
        """Return the readers for which each replica keeps its log. Raises BrokerError like `accounts`."""
        return await self._of_replicas(RequestCode.LIST_LEASES, LeaseList.decode)

    async def _of_replicas(self, code: RequestCode, decode: Callable[[bytes | memoryview], T]) -> OfReplicas[T]:
        """Ask all replicas at once, each with one request."""
        responses: OfReplicas[T] = OfReplicas()
        refusals: list[BrokerError] = []
        info = await self.cluster_info()

        async def ask(replica: str, address: str) -> None:
            try:
                _, body = await self._open_core().call(address, code, {}, timeout=REPLICA_SECONDS)
                responses.answers[replica] = read_body(decode, body)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    responses.incapable.append(replica)
                else:
                    refusals.append(error)
            except ClientError:
                responses.silent.append(replica)

        async with trio.open_nursery() as nursery:
            for group, data in info.brokers.items():
                for address in data.broker_addrs.values():
                    nursery.start_soon(ask, f"{group} {address}", address)
        if refusals:
            raise refusals[0]
        return responses

    async def pending(self, kind: PendingKind, count: int) -> dict[str, PendingInfo] | None:
        """Return each broker group's invisible messages: their number and the first ``count``. One request per group.

        None if a broker does not know the request, as those of Apache RocketMQ.
        """
        pending_by_broker: dict[str, PendingInfo] = {}
        ext = AskPendingExt(kind=kind, count=count).fields()
        for broker, address in (await self._leaders(None, None)).items():
            try:
                _, body = await self._open_core().call(address, RequestCode.ASK_PENDING, ext)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return None
                raise
            pending_by_broker[broker] = read_body(PendingInfo.decode, body)
        return pending_by_broker
