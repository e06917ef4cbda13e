"""Sends requests to the leader of a broker group: finds the leader, and retries.

The leader may change at any time, and the cached route then names a former one. So a failed request is sent again with
a fresh route while its caller has time, if that is useful and safe. Sends have their own rules, see
`produce.send_pipeline`; pulls and pops are retried for ever, see `consume.pull_loop` and `consume.pop_consumer`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import anyio

from mq.client.errors import BrokerError, ClientClosed, ClientError, NoRoute, TopicNotFound
from mq.client.logs import log
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import Connection
from mq.client.net.routes import LEADER_ID, TopicRoute
from mq.client.send_outcome import Retry, judge_send
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.namesrv import ClusterInfo

PAUSE_SECONDS = 0.1
"""Between two attempts. A group that lost its leader has a new one within tens to hundreds of milliseconds."""


class Repeat(Enum):
    """Says after which failures a request is sent again, with a new route, while there is time."""

    NEVER = "never"
    UNLESS_CARRIED_OUT = "unless carried out"
    """Repeat after failures that certainly had no effect: no leader, no connection, a leader that is busy."""
    ALWAYS = "always"
    """Repeat after an unknown outcome as well: the request is idempotent."""


def leader_in(route: TopicRoute, broker_name: str) -> str:
    """Return the address of a broker group's leader in `route`. Raises NoRoute while the group has no leader."""
    address = route.leader_address(broker_name)
    if address is None:
        raise NoRoute(route.topic, no_leader_reason(route, broker_name))
    return address


def no_leader_reason(route: TopicRoute, broker_name: str) -> str:
    """Say why a broker group has no leader in `route`: none is elected, or the topic is not in this group."""
    if broker_name in route.brokers:
        return f"broker group {broker_name} has no leader"
    return f"it is not in broker group {broker_name!r}, only in {', '.join(sorted(route.brokers)) or 'none'}"


def known_leader(core: ClientCore, topic: str, broker_name: str) -> str:
    """Return the address of the leader from the cached route. Raises NoRoute."""
    route = core.known_route(topic)
    if route is None:
        raise NoRoute(topic, "the route is not known yet")
    return leader_in(route, broker_name)


async def leader_address(core: ClientCore, topic: str, broker_name: str, *, refresh: bool = False) -> str:
    """Return the address of a broker group's leader. Raises NoRoute, and the errors of `ClientCore.route`."""
    return leader_in(await core.route(topic, refresh=refresh), broker_name)


def _connected_leader(core: ClientCore, topic: str, broker_name: str) -> Connection | None:
    """Return the connection to the leader if both are known, as nearly always. Then no wait is needed."""
    route = core.known_route(topic)
    address = None if route is None else route.leader_address(broker_name)
    return None if address is None else core.find_connection(address)


async def call_leader(
    core: ClientCore,
    topic: str,
    broker_name: str,
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    seconds: float,
    repeat: Repeat,
    busy_codes: Collection[int] = (),
) -> tuple[Response, memoryview]:
    """Send a request to the leader of `broker_name` for `topic`, and return the answer, whose code is SUCCESS.

    `seconds` is for all attempts together. One attempt takes at most `RemotingSettings.request_seconds` if it may be
    retried after its timeout, else all the remaining time. `busy_codes` are further answers to this request that mean
    "busy".

    Raises the error of the last attempt that did not just run out of time on its way to a leader: BrokerError, NoRoute,
    TopicNotFound and the errors of `ClientCore.route` and `Connection.call`; its `stored` says whether that attempt may
    have been executed. If cancelled, it makes no further attempt.
    """
    deadline = anyio.current_time() + seconds
    refresh = False
    failure: ClientError | None = None
    while True:
        try:
            connection = None if refresh else _connected_leader(core, topic, broker_name)
            if connection is None:
                with anyio.move_on_at(deadline):
                    connection = await core.connection(await leader_address(core, topic, broker_name, refresh=refresh))
            if connection is None:
                # The time is over; why it was not enough is known from the attempt before.
                reason = f"the leader of broker group {broker_name} was not reached within {seconds:g} s"
                raise failure or NoRoute(topic, reason)
            seconds_left = max(deadline - anyio.current_time(), 0.001)
            timeout = min(seconds_left, core.settings.request_seconds) if repeat is Repeat.ALWAYS else seconds_left
            return await connection.call(code, ext, body, timeout=timeout)
        except ClientError as error:
            is_last = anyio.current_time() + PAUSE_SECONDS >= deadline
            if is_last or not _may_follow(error, repeat, busy_codes, known=core.known_route(topic) is not None):
                raise
            failure = error
            log.info("leader_asked_again", topic=topic, broker_name=broker_name, code=code, reason=str(error))
        await anyio.sleep(PAUSE_SECONDS)
        refresh = True


def is_busy(error: BrokerError) -> bool:
    """Return whether a broker refused a request, of any kind, because it is busy."""
    return error.code == ResponseCode.SYSTEM_BUSY or judge_send(error.code, error.remark).retry is Retry.UNTIL_TIMEOUT


def _may_follow(error: ClientError, repeat: Repeat, busy_codes: Collection[int], *, known: bool) -> bool:
    """Return whether another attempt after `error` is useful and safe. `known`: the topic had a route before."""
    if repeat is Repeat.NEVER or isinstance(error, ClientClosed):
        return False
    if isinstance(error, TopicNotFound):
        return known  # a name server that has just started knows no topics yet
    if error.stored == "unknown" and repeat is not Repeat.ALWAYS:
        return False
    return not isinstance(error, BrokerError) or error.code in busy_codes or is_busy(error)


def leaders_in(info: ClusterInfo, cluster: str | None, broker: str | None) -> dict[str, str | None]:
    """Map the chosen broker groups to their leaders, None while a group has none. Raises NoRoute if none matches."""
    names = {name for each, names in info.clusters.items() if cluster in (None, each) for name in names}
    if broker is not None:
        names &= {broker}
    if info.brokers and not names:
        raise NoRoute("", f"no broker group matches cluster {cluster or 'any'} and broker {broker or 'any'}")
    groups = {name: info.brokers.get(name) for name in sorted(names)}
    return {name: None if group is None else group.broker_addrs.get(LEADER_ID) for name, group in groups.items()}
