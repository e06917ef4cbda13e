"""Queries of operators about lite topics: request codes 200074 to 200079.

The leader answers, since the subscriptions are only in its memory. There may be very many lite topics, so answers about
all of them are built in steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import itemgetter

from mq.broker.context import BrokerContext
from mq.broker.lite.pop import Client, LitePops
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.protocol.codes import ResponseCode
from mq.protocol.names import NameRefused, check_lite_topic, is_lite_queue, lite_queue, split_lite_queue
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.lite import (
    BrokerLiteInfo,
    GetBrokerLiteInfo,
    GetLiteClientInfo,
    GetLiteGroupInfo,
    GetLiteTopicInfo,
    GetParentTopicInfo,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteSubscriber,
    LiteTopicInfo,
    ParentTopicInfo,
    TriggerLiteDispatch,
)
from mq.protocol.requests.lite_attributes import EXPIRATION, LiteGroup, is_lite, lite_group
from mq.protocol.requests.topics import QueueEnds
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError

NAMES_MAX = 10_000
"""Lite topics that an answer names at most, as in RocketMQ."""
_STEP = 200
"""Lite topics that are looked at in one step."""


class LiteQueries(Service):
    """Answers queries of operators about lite topics and their subscribers.

    Args:
        store_time: when the message of a queue at an offset was stored; see `OffsetAndTimeQueries.store_time`.
    """

    def __init__(
        self, context: BrokerContext, *, pops: LitePops, store_time: Callable[[str, int, QueueOffset], int]
    ) -> None:
        self._metadata, self._store = context.metadata, context.store
        self._clock, self._wall_clock_ms = context.clock, context.wall_clock_ms
        self._topics_max = context.limits.lite.topics_max
        self._read = context.reads.read
        self._gradually = context.slow_responses
        self._pops = pops
        self._store_time = store_time

    def routes(self) -> Iterator[Route]:
        yield Route(GetBrokerLiteInfo, self.handle_broker, leader_only=True, repeatable=True)
        yield Route(GetParentTopicInfo, self.handle_parent, leader_only=True, repeatable=True)
        yield Route(GetLiteTopicInfo, self.handle_topic, leader_only=True, repeatable=True)
        yield Route(GetLiteClientInfo, self.handle_client, leader_only=True, repeatable=True)
        yield Route(GetLiteGroupInfo, self.handle_group, leader_only=True, repeatable=True)
        yield Route(TriggerLiteDispatch, self.handle_dispatch, leader_only=True, repeatable=True)

    # -- topics --------------------------------------------------------------------------------------------------------

    def handle_broker(self, call: Call[GetBrokerLiteInfo]) -> None:
        """Request code 200074: return the figures of all lite topics."""

        def respond() -> ResponseSteps:
            open_count = offset_count = 0
            for number, (_, queue, _) in enumerate(list(self._metadata.pops.queues)):
                open_count += is_lite_queue(queue)
                if number % _STEP == 0:
                    yield
            for number, table in enumerate(list(self._metadata.lite.tables.values())):
                offset_count += len(table)
                if number % _STEP == 0:
                    yield
            info = BrokerLiteInfo(
                store_type="raft",
                topics_max=self._topics_max,
                topic_count=self._store.lite_count,
                subscription_count=self._pops.subscriptions.count,
                open_count=open_count,
                queue_count=len(self._store.all_keys()),
                offset_count=offset_count,
                news_count=sum(bool(client.ready) for client in self._pops.subscriptions.clients.values()),
                expirations={
                    name: int(config.attributes.get(EXPIRATION, -1))
                    for name, config in sorted(self._metadata.topics.items())
                    if is_lite(config.attributes)
                },
                groups=self._bound_groups(),
            )
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    def handle_parent(self, call: Call[GetParentTopicInfo]) -> None:
        """Request code 200075: return the figures of a parent topic."""
        topic = call.request.ext.topic

        def respond() -> ResponseSteps:
            self._check_parent(topic)
            count, begin = 0, lite_queue(topic, "")
            for number, (queue, _) in enumerate(self._store.all_keys()):
                count += queue.startswith(begin)
                if number % _STEP == 0:
                    yield
            config = self._metadata.topics.get(topic)
            info = ParentTopicInfo(
                topic=topic,
                expiration_minutes=-1 if config is None else int(config.attributes.get(EXPIRATION, -1)),
                groups=self._bound_groups().get(topic, []),
                broker_count=self._store.lite_count,
                topic_count=count,
            )
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    def handle_topic(self, call: Call[GetLiteTopicInfo]) -> None:
        """Request code 200076: return the figures and the subscribers of a lite topic."""
        parent, lite = call.request.ext.parent_topic, call.request.ext.lite_topic

        def respond() -> ResponseSteps:
            self._check_parent(parent)
            self._check_lite(lite)
            name = lite_queue(parent, lite)
            queue, subscribers = self._store.get(name, 0), self._pops.subscriptions.all_subscribers(name)
            ends = QueueEnds()
            if queue is not None:
                last_ms = self._store_time(name, 0, QueueOffset(queue.max_offset - 1))
                ends = QueueEnds(queue.min_offset, queue.max_offset, max(last_ms, 0))
            yield
            info = LiteTopicInfo(
                parent_topic=parent,
                lite_topic=lite,
                subscribers=[LiteSubscriber(client_id=client, group=group) for group, client in subscribers],
                ends=ends,
                is_there=queue is not None,
            )
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    # -- clients and groups --------------------------------------------------------------------------------------------

    def handle_client(self, call: Call[GetLiteClientInfo]) -> None:
        """Request code 200077: return the subscriptions of a client."""
        ext = call.request.ext

        def respond() -> ResponseSteps:
            self._check_parent(ext.parent_topic)
            group = self._group(ext.group)
            if group.parent != ext.parent_topic:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"the group {ext.group} is bound to {group.parent}, not to {ext.parent_topic[:80]}",
                )
            if ext.max_count < 1:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"maxCount is {ext.max_count}; allowed: 1 or more")
            yield
            info = LiteClientInfo(parent_topic=ext.parent_topic, group=ext.group, client_id=ext.client_id)
            client = self._pops.subscriptions.clients.get((ext.group, ext.client_id))
            if client is not None:
                info.heard_ms = self._wall_clock_ms() - round((self._clock() - client.heard_at) * 1000)
                queues = client.queues
                info.topic_count = 1 if queues is None else len(queues)
                names = ["*"] if queues is None else [split_lite_queue(queue)[1] for queue in sorted(queues)]
                info.lite_topics = names[: min(ext.max_count, NAMES_MAX)]
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    def handle_group(self, call: Call[GetLiteGroupInfo]) -> None:
        """Request code 200078: return the lag of a group in lite topics."""
        ext = call.request.ext

        def respond() -> ResponseSteps:
            group = self._group(ext.group)
            if ext.lite_topic:
                info = self._progress(ext.group, group, ext.lite_topic)
                yield
            else:
                if not 0 <= ext.top_count <= NAMES_MAX:
                    raise RequestRefused(
                        ResponseCode.INVALID_PARAMETER, f"topK is {ext.top_count}; allowed: 0 to {NAMES_MAX}"
                    )
                info = LiteGroupInfo(group=ext.group, parent_topic=group.parent)
                yield from self._lags(group, ext.top_count, info)
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    def handle_dispatch(self, call: Call[TriggerLiteDispatch]) -> None:
        """Request code 200079: serve a group's waiting pops. Raises RequestRefused if the client is unknown."""
        name, client_id = call.request.ext.group, call.request.ext.client_id

        def respond() -> ResponseSteps:
            self._group(name)
            clients = [
                client
                for (group, each), client in self._pops.subscriptions.clients.items()
                if group == name and (not client_id or each == client_id)
            ]
            if client_id and not clients:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    f"{client_id[:80]} of the group {name} has not sent its subscriptions",
                )
            for client in clients:
                yield from self._dispatch(client)
            return call.success()

        self._gradually.when_current(self._read, call, respond)

    def _dispatch(self, client: Client) -> Iterator[None]:
        if client.queues is None:
            self._pops.restart_sweep()
            return
        queues = sorted(client.queues)
        for at in range(0, len(queues), _STEP):
            # The client may have changed its subscriptions between two steps, or be forgotten.
            self._pops.on_subscribe(client, [queue for queue in queues[at : at + _STEP] if client.reads(queue)])
            yield

    # -- lag -----------------------------------------------------------------------------------------------------------

    def _progress(self, name: str, group: LiteGroup, lite: str) -> LiteGroupInfo:
        self._check_lite(lite)
        info = LiteGroupInfo(group=name, parent_topic=group.parent, lite_topic=lite)
        queue_name = lite_queue(group.parent, lite)
        queue = self._store.get(queue_name, 0)
        if queue is None:
            info.lag = -1
            return info
        offset = self._metadata.consumer_offset(name, queue_name, 0)
        if offset is None:
            reads = group.wildcard or bool(self._pops.subscriptions.subscribers(queue_name, name))
            if not reads:
                return info
        at = queue.min_offset if offset is None else max(offset, queue.min_offset)
        info.lag = max(0, queue.max_offset - at)
        info.oldest_ms = self._store_time(queue_name, 0, at)
        last_ms = max(self._store_time(queue_name, 0, QueueOffset(at - 1)), 0)
        info.progress = GroupProgress(queue.max_offset, at, last_ms, at)
        return info

    def _lags(self, group: LiteGroup, count: int, info: LiteGroupInfo) -> Iterator[None]:
        """Fill in the lags of a group. The log is ordered by time, so few records are read."""
        longest: list[tuple[int, str]] = []
        oldest: list[tuple[int, str]] = []
        for number, (lite, offset) in enumerate(self._read_by(info.group, group)):
            if number % _STEP == 0:
                yield
            queue = self._store.get(lite_queue(group.parent, lite), 0)
            if queue is None:
                continue
            at = queue.min_offset if offset is None else max(offset, queue.min_offset)
            lag = queue.max_offset - at
            if lag <= 0:
                continue
            info.lag += lag
            _keep(longest, (lag, lite), count)
            _keep(oldest, (-_log_position(queue, at), lite), max(count, 1))
        times: dict[str, LiteLag] = {}
        for _, lite in (*oldest, *longest):
            if lite not in times:
                one = self._progress(info.group, group, lite)
                times[lite] = LiteLag(lite_topic=lite, lag=max(one.lag, 0), oldest_ms=one.oldest_ms)
                yield
        by_time = [times[lite] for _, lite in sorted(oldest, reverse=True)]
        info.oldest_ms = by_time[0].oldest_ms if by_time else -1
        info.oldest = by_time[:count]
        info.longest = [times[lite] for _, lite in sorted(longest, key=itemgetter(0), reverse=True)]

    def _read_by(self, name: str, group: LiteGroup) -> Iterator[tuple[str, QueueOffset | None]]:
        """Yield the lite topics that a group has offsets in or subscribes to, each with its offset or None.

        What changes while the answer is built may be missing.
        """
        if group.wildcard:
            begin = lite_queue(group.parent, "")
            for queue, _ in self._store.all_keys():
                if queue.startswith(begin):
                    yield split_lite_queue(queue)[1], self._metadata.lite.get(name, queue)
            return
        for key in [key for key in self._metadata.lite.tables if key[:2] == (name, group.parent)]:
            yield from list(self._metadata.lite.tables.get(key, {}).items())
        queues: set[str] = set()
        for client in [client for key, client in self._pops.subscriptions.clients.items() if key[0] == name]:
            for queue in sorted(client.queues or ()):
                if queue not in queues and self._metadata.lite.get(name, queue) is None:
                    queues.add(queue)
                    yield split_lite_queue(queue)[1], None

    # -- what is asked about -------------------------------------------------------------------------------------------

    def _check_parent(self, topic: str) -> None:
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic[:80]} does not exist")
        if not is_lite(config.attributes):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the topic {topic} has no lite topics")

    def _check_lite(self, lite: str) -> None:
        try:
            check_lite_topic(lite)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error

    def _group(self, name: str) -> LiteGroup:
        config = self._metadata.groups.get(name)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group {name[:80]} does not exist")
        group = lite_group(config.attributes)
        if not group.parent:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the group {name} is bound to no topic")
        return group

    def _bound_groups(self) -> dict[str, list[str]]:
        """Map each parent topic to the groups that are bound to it."""
        groups: dict[str, list[str]] = {}
        for name, config in sorted(self._metadata.groups.items()):
            if parent := lite_group(config.attributes).parent:
                groups.setdefault(parent, []).append(name)
        return groups


def _keep(heap: list[tuple[int, str]], row: tuple[int, str], count: int) -> None:
    """Add a row to a heap that keeps the ``count`` largest."""
    if len(heap) < count:
        heapq.heappush(heap, row)
    elif heap and row > heap[0]:
        heapq.heapreplace(heap, row)


def _log_position(queue: ConsumeQueue, offset: QueueOffset) -> int:
    """Return the physical offset of the message at a queue offset; `FIRST_OFFSET` if its entry cannot be read."""
    try:
        entry = queue.read(offset, 1)
    except (StoreError, OSError):
        return FIRST_OFFSET
    return int(QUEUE_ENTRY.unpack(entry)[0]) if entry else FIRST_OFFSET
