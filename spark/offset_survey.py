"""Finds the queues and offsets to read, from name servers and brokers, when a query is planned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

from mq.protocol.codes import RequestCode
from spark.client import BrokerResponse, Connection, NameServers, ServerError, TopicRoute, Unreachable
from spark.option_table import QueueName
from spark.options import Pattern, Queues, Subscription, Topics
from spark.plan import ArchiveClaim, ArchivedLog, PlanInvalid, QueueEnds, format_queues

LEADER_ID: Final = 0
"""The broker id under which the leader of a broker group registers."""

_HIDDEN: Final = re.compile(
    r"%RETRY%.*|%DLQ%.*|rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT"
    r"|.*_REPLY_TOPIC|DefaultCluster|RMQ_.*"
)
"""Topics that a pattern does not match: the system's and consumer groups' own."""

_AT_ONCE: Final = 256
"""Requests in flight on one connection."""


class Survey(NamedTuple):
    """The queues of a query, with their routes.

    Attributes:
        identities: by topic and broker name what distinguishes the topic from another one of the same name, where
            known.
        places: by topic and broker name the queue offsets at some places in the log, ascending, where
            known; see `plan.stripes`.
        positions: the physical offsets of these places, and before them the start of the log.
        archives: by topic and broker name the archive of the group, None if it has none; without groups where no
            replica has told it.
        claims: by topic and broker name each replica's claim of the archive, where no leader has confirmed one of them.
            The archive must agree with all of them.
    """

    routes: Mapping[str, TopicRoute]
    ends: Mapping[QueueName, QueueEnds]
    identities: Mapping[tuple[str, str], str] = MappingProxyType({})
    places: Mapping[tuple[str, str], Sequence[Mapping[int, int]]] = MappingProxyType({})
    positions: Mapping[tuple[str, str], Sequence[int]] = MappingProxyType({})
    archives: Mapping[tuple[str, str], ArchivedLog | None] = MappingProxyType({})
    claims: Mapping[tuple[str, str], Sequence[ArchiveClaim]] = MappingProxyType({})


class Surveyor:
    """Queries name servers and brokers with requests that every RocketMQ broker supports.

    Args:
        timeout: seconds to wait for a response.
        connect: creates a connection to an address with a timeout in seconds.
    """

    def __init__(
        self, namesrv: Sequence[str], timeout: float, connect: Callable[[str, float], Connection] = Connection
    ) -> None:
        self._names = NameServers(namesrv, timeout, connect)
        self._timeout = timeout
        self._connect = connect

    def survey(self, subscription: Subscription, *, strict: bool = True, previous: Survey | None = None) -> Survey:
        """Find all queues of the subscription, and the first offset and end of each.

        Args:
            strict: whether to refuse missing topics and queues; otherwise they are left out.
            previous: an earlier result; then only brokers are queried, for the ends of the same queues.

        Raises:
            PlanInvalid: a topic or queue that the user named does not exist.
            Unreachable: no name server responds, or no broker of a group does.
        """
        if previous is not None:
            return Survey(previous.routes, self._ends(previous.routes, list(previous.ends)))
        routes = self._routes(list(self._topics(subscription, strict)), strict)
        queues = [
            (topic, broker_name, queue_id)
            for topic, route in routes.items()
            for broker_name, count in sorted(route.read_queues.items())
            for queue_id in range(count)
        ]
        if isinstance(subscription, Queues):
            if strict and (unknown := sorted(subscription.queues - set(queues))):
                raise PlanInvalid(f"option assign names {format_queues(unknown)}, which cannot be read")
            queues = sorted(subscription.queues & set(queues))
        return Survey(routes, self._ends(routes, queues))

    def add_details(self, survey: Survey) -> Survey:
        """Add the sizes and places that planning needs, as far as brokers have them."""
        return survey

    def by_time(self, survey: Survey, times: Mapping[QueueName, int]) -> dict[QueueName, int | None]:
        """Find for each queue the offset of the first message stored at the time or later; None without one.

        ``times`` are epoch milliseconds. Raises Unreachable, ServerError.
        """
        offsets: dict[QueueName, int | None] = {}
        for queue, answer in self._each(survey.routes, times, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, times):
            offset = _offset(queue, answer)
            offsets[queue] = offset if offset < survey.ends[queue].end else None
        return offsets

    def _topics(self, subscription: Subscription, strict: bool) -> Iterable[str]:
        match subscription:
            case Topics(named):
                return named
            case Queues(queues):
                return sorted({topic for topic, _, _ in queues})
            case Pattern(pattern):
                regex = re.compile(pattern)
                names = [each for each in self._names.topics() if regex.fullmatch(each) and not _HIDDEN.fullmatch(each)]
                if strict and not names:
                    raise PlanInvalid(f"option subscribePattern: no topic matches {pattern!r}")
                return names

    def _routes(self, topics: Sequence[str], strict: bool) -> dict[str, TopicRoute]:
        routes = self._names.routes(topics)
        if strict:
            for topic in topics:
                if topic not in routes:
                    raise PlanInvalid(f"the topic {topic!r} does not exist")
                if not routes[topic].read_queues:
                    raise PlanInvalid(f"the topic {topic!r} has no queue that may be read")
        return {topic: route for topic, route in routes.items() if route.read_queues}

    def _ends(self, routes: Mapping[str, TopicRoute], queues: Sequence[QueueName]) -> dict[QueueName, QueueEnds]:
        first = {
            queue: _offset(queue, answer) for queue, answer in self._each(routes, queues, RequestCode.GET_MIN_OFFSET)
        }
        end = {
            queue: _offset(queue, answer) for queue, answer in self._each(routes, queues, RequestCode.GET_MAX_OFFSET)
        }
        # Retention may have moved the beginning between the two.
        return {queue: QueueEnds(max(first[queue], 0), max(end[queue], first[queue], 0)) for queue in queues}

    def _each(
        self,
        routes: Mapping[str, TopicRoute],
        queues: Iterable[QueueName],
        code: int,
        times: Mapping[QueueName, int] | None = None,
    ) -> Iterator[tuple[QueueName, BrokerResponse]]:
        """Send the same request for many queues: each broker group over one connection, pipelined."""
        by_group: dict[str, list[QueueName]] = {}
        for queue in queues:
            by_group.setdefault(queue[1], []).append(queue)
        for broker_name, members in by_group.items():
            addresses = routes[members[0][0]].addresses.get(broker_name, {})
            with self._connect_any(broker_name, addresses) as connection:
                for begin in range(0, len(members), _AT_ONCE):
                    requests = [
                        (queue, connection.send(code, _fields(queue, times)))
                        for queue in members[begin : begin + _AT_ONCE]
                    ]
                    for queue, number in requests:
                        yield queue, connection.receive(number)

    @contextmanager
    def _connect_any(self, broker_name: str, addresses: Mapping[int, str]) -> Iterator[Connection]:
        """Connect to the leader, or to another replica if it is unreachable, until the block ends."""
        failures: list[str] = []
        order = sorted(addresses, key=lambda number: (number != LEADER_ID, number))
        connection = None
        for number in order:
            try:
                connection = self._connect(addresses[number], self._timeout)
                break
            except Unreachable as error:
                failures.append(str(error))
        if connection is None:
            raise Unreachable(broker_name, f"no replica can be reached ({'; '.join(failures) or 'none is known'})")
        try:
            yield connection
        finally:
            connection.close()


def _fields(queue: QueueName, times: Mapping[QueueName, int] | None) -> dict[str, str]:
    topic, broker_name, queue_id = queue
    fields = {"topic": topic, "queueId": str(queue_id), "brokerName": broker_name}
    return fields if times is None else {**fields, "timestamp": str(times[queue])}


def _offset(queue: QueueName, response: BrokerResponse) -> int:
    if response.code:
        raise ServerError(queue[1], response.code, f"{response.remark} ({format_queues([queue])})")
    try:
        return int(response.ext["offset"])
    except (KeyError, ValueError) as error:
        raise Unreachable(queue[1], f"answered without an offset: {response.ext}") from error
