"""Checks the addresses of a client: connects at once, and reports the problem and its remedy within seconds."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from mq.client.errors import BrokerError, ClientError, ConnectFailed, NameServersUnavailable, NoRoute, TopicNotFound
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import read_body
from mq.client.net.routes import LEADER_ID
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.namesrv import ClusterInfo

PING_SECONDS = 2.0


async def ping(core: ClientCore, topics: Iterable[str], seconds: float) -> None:
    """Ask a name server for the brokers, connect to one of their leaders, and look up the topics.

    Raises within `seconds`: NameServersUnavailable, ConnectFailed, NoRoute, TopicNotFound, BrokerError.
    """
    if not seconds > 0:
        raise ValueError(f"timeout is {seconds}; it must be positive")
    deadline = anyio.current_time() + seconds
    info = await _cluster(core, deadline, seconds)
    if not info.brokers:
        raise NoRoute("", "the name server knows no broker; start one, with the address of this name server")
    addresses = (each.broker_addrs.get(LEADER_ID) for each in info.brokers.values())
    leaders = sorted(address for address in addresses if address is not None)
    if not leaders:
        raise NoRoute("", f"no broker group has a leader now: {', '.join(sorted(info.brokers))}; see raftmq status")
    await _any_leader(core, leaders, deadline, seconds)
    for topic in topics:
        with anyio.move_on_at(deadline):
            await _check_topic(core, topic)
            continue
        raise NoRoute(topic, f"no name server answered within {seconds:g} s")


async def _cluster(core: ClientCore, deadline: float, seconds: float) -> ClusterInfo:
    """Ask all name servers at once, and return the first answer."""
    reasons = dict.fromkeys(
        core.name_servers, f"no answer within {seconds:g} s; is the address right, and does a firewall drop packets?"
    )
    clusters: list[ClusterInfo] = []
    errors: list[BrokerError] = []
    with anyio.move_on_at(deadline):
        async with anyio.create_task_group() as tasks:

            async def ask(address: str) -> None:
                code = RequestCode.GET_BROKER_CLUSTER_INFO
                try:
                    connection = await core.connection(address)
                    response, body = await connection.request(code, timeout=seconds)
                    if response.code == ResponseCode.SUCCESS:
                        clusters.append(read_body(ClusterInfo.decode, body))
                        core.prefer_name_server(address)
                        tasks.cancel_scope.cancel()
                    elif response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        reasons[address] = "not a name server; is it a broker's address?"
                    else:
                        errors.append(BrokerError(response.code, response.remark, address))
                except ConnectFailed as error:
                    reasons[address] = error.reason
                except ClientError as error:
                    reasons[address] = str(error)

            for address in core.name_servers:
                tasks.start_soon(ask, address)
    if clusters:
        return clusters[0]
    if errors:
        raise errors[0]
    raise NameServersUnavailable(reasons)


async def _any_leader(core: ClientCore, addresses: list[str], deadline: float, seconds: float) -> None:
    """Connect to the leaders until one connection is open."""
    reasons: dict[str, str] = {}
    connected = False
    with anyio.move_on_at(deadline):
        async with anyio.create_task_group() as tasks:

            async def connect(address: str) -> None:
                nonlocal connected
                try:
                    await core.connection(address)
                    connected = True
                    tasks.cancel_scope.cancel()
                except ConnectFailed as error:
                    reasons[address] = error.reason

            for address in addresses:
                tasks.start_soon(connect, address)
    if not connected:
        reason = reasons.get(addresses[0], f"no connection within {seconds:g} s")
        raise ConnectFailed(addresses[0], f"{reason}; is this broker announced with an address that works from here?")


async def _check_topic(core: ClientCore, topic: str) -> None:
    try:
        route = await core.route(topic, refresh=True)
    except TopicNotFound:
        raise TopicNotFound(topic, "is it spelled right? Create it with raftmq topic create") from None
    if not any(route.leader_address(name) for name in route.brokers):
        raise NoRoute(topic, f"{', '.join(sorted(route.brokers))} has no leader now; see raftmq status")
