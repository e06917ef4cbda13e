"""The core that producers, consumers and admins share: name servers, cached routes, connections, heartbeats.

Routes are read from one name server, chosen at random, until it fails; then from the next one. They are refreshed every
30 s, after failures, and when a broker that was taken for the leader says that it had to forward a request. A client
identifies itself to a broker with the first frame on each new connection and again every 30 s, because brokers drop
silent clients.

Each client opens one `ClientCore` around all its work, so that it can still talk to brokers when everything else has
ended. That also holds for a cancelled client: its connections end when they are closed, not before.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

import anyio
import anyio.abc

from mq.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ClientForked,
    ConnectFailed,
    ConnectionLost,
    NameServersUnavailable,
    RequestTimeout,
    TopicNotFound,
    copy_of,
)
from mq.client.events import ClientEvent, OnEvent, emit
from mq.client.limits import DEFAULT, ClientLimits
from mq.client.logs import log
from mq.client.net.connection import (
    Connection,
    OnServerRequest,
    ResponseOrLoss,
    open_connection,
    refuse_server_request,
    split_address,
)
from mq.client.net.credentials import Credentials, tls_from_environment
from mq.client.net.forks import forks
from mq.client.net.liveness import SilenceWatch
from mq.client.net.replies import read_body
from mq.client.net.routes import TopicRoute
from mq.client.task_group import open_task_group
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.clients import UnregisterClientExt
from mq.protocol.requests.namesrv import Route, RouteExt

_ALL_NAME_SERVERS_KNOW = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)
"""A server that does not know it is usually a broker, whose address was configured as a name server's."""

AUTO_CREATE_QUEUES_MAX = 4
"""A topic that does not exist gets the template's number of queues with its first message, up to this."""

FORWARDED_PAUSE_SECONDS = 0.25
"""Interval for asking the name servers for the leader while a broker still forwards requests."""

GOODBYE_SECONDS = 1.0
"""Time that a closing client waits for a broker to confirm."""


def parse_addresses(namesrv: str | Sequence[str]) -> list[str]:
    """Parse `"a:9876;b:9876"`, or a list of `host:port`. Raises ValueError for a malformed address, or for none."""
    if namesrv is None:
        raise ValueError("name servers are 'host:port', separated by ';', or a list of such, not None")
    parts = namesrv.replace(",", ";").split(";") if isinstance(namesrv, str) else namesrv
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ValueError("at least one name server address is needed")
    for address in addresses:
        if "/" in address:
            raise ValueError(f"not an address of the form host:port: {address!r}")
        split_address(address)
    return addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingSettings:
    """Credentials and timeouts, in seconds, of all requests except sends and pulls."""

    connect_seconds: float = 3.0
    silence_seconds: float = 1.0
    """A connection that received nothing for this time is closed when a request times out, or when another replica
    leads.
    """
    silence_check_seconds: float = 0.25
    """Seconds between two looks for silent connections, whose leaders the name servers are asked for."""
    probe_seconds: float = 3.0
    """Seconds without data after which a broker that holds a pull is probed."""
    request_seconds: float = 3.0
    route_refresh_seconds: float = 30.0
    heartbeat_seconds: float = 30.0
    credentials: Credentials | None = field(default_factory=Credentials.from_environment)
    """Credentials for requests; by default from the environment, see `Credentials.from_environment`."""
    tls: ssl.SSLContext | None = field(default_factory=tls_from_environment, repr=False)
    """TLS for connections to brokers and name servers; by default from the environment, see `tls_from_environment`."""
    limits: ClientLimits = field(default=DEFAULT, repr=False)
    """Limits that only tests of this project change."""


def _reason(failure: ClientError) -> str:
    """Return the reason of a failure, without the address, which the new error contains anyway."""
    return failure.reason if isinstance(failure, ConnectFailed) else str(failure)


class _SharedAttempt:
    """Merges simultaneous requests for one connection (or one route) into one attempt; all get its failure."""

    __slots__ = ("attempts", "failure", "lock")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.attempts = 0
        self.failure: ClientError | None = None


class ClientCore:
    """Sends requests to brokers by address and to any name server, and finds routes. See `open`: `run` runs in a task.

    `heartbeat_body` returns the current body of request 34. `on_route_change` is called (synchronously) when the route
    of a topic becomes known or changes, `on_server_request` with requests from brokers. `has_heard` says whether a name
    server has ever answered: until then, the addresses may be wrong.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        name_servers: Sequence[str],
        *,
        heartbeat_body: Callable[[], bytes] | None = None,
        on_route_change: Callable[[TopicRoute], None] | None = None,
        on_server_request: OnServerRequest = refuse_server_request,
        on_event: OnEvent | None = None,
        settings: RemotingSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._on_event = on_event
        self._unavailable: NameServersUnavailable | None = None
        self.settings = settings or RemotingSettings()
        self._tasks = tasks
        self.name_servers = list(name_servers)
        self._name_server = (rng or random.Random()).randrange(len(self.name_servers))
        self._heartbeat_body = heartbeat_body
        self._on_route_change = on_route_change
        self._on_server_request = on_server_request
        self._connections: dict[str, Connection] = {}
        self._slots: dict[str, _SharedAttempt] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._group_at: dict[str, str] = {}
        self._looking_up: dict[str, _SharedAttempt] = {}
        self._heartbeat_wanted = anyio.Event()
        self._ask_again_at = float("-inf")
        self._closed = False
        self.has_heard = False
        self._forks, self._process = forks(), os.getpid()

    async def run(self) -> None:
        """Keep routes and connections up to date, and send heartbeats, until cancelled."""
        watch = SilenceWatch(
            lambda: list(self._connections.values()),
            leader_for=self._leader_for,
            probe=self._send_heartbeat,
            silence_seconds=self.settings.silence_seconds,
            probe_seconds=self.settings.probe_seconds,
            check_seconds=self.settings.silence_check_seconds,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._refresh_routes_forever)
            tasks.start_soon(watch.run)
            if self._heartbeat_body is not None:
                tasks.start_soon(self._heartbeat_forever)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        name_servers: Sequence[str],
        *,
        heartbeat_body: Callable[[], bytes] | None = None,
        on_route_change: Callable[[TopicRoute], None] | None = None,
        on_server_request: OnServerRequest = refuse_server_request,
        on_event: OnEvent | None = None,
        settings: RemotingSettings | None = None,
        rng: random.Random | None = None,
    ) -> AsyncGenerator[Self]:
        """Open a `ClientCore` for the block, and close it at the end, also after an error."""
        async with open_task_group() as tasks:
            core = cls(
                tasks,
                name_servers,
                heartbeat_body=heartbeat_body,
                on_route_change=on_route_change,
                on_server_request=on_server_request,
                on_event=on_event,
                settings=settings,
                rng=rng,
            )
            tasks.start_soon(core.run)
            try:
                yield core
            finally:
                core.close()

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return sum(each.failure is None for each in list(self._connections.values()))

    def emit(self, event: ClientEvent) -> None:
        """Pass an event to the application."""
        emit(self._on_event, event)

    def troubles(self) -> Iterator[str]:
        """Describe the problems of this client: unreachable name servers, and unreachable leaders of known routes."""
        if self._unavailable is not None:
            yield str(self._unavailable)
        routes = self._routes.values()
        leaders = {route.leader_address(name) for route in routes for name in route.brokers}
        for address in sorted(address for address in leaders if address is not None):
            slot = self._slots.get(address)
            if self.find_connection(address) is None and slot is not None and slot.failure is not None:
                yield str(slot.failure)
        for topic, route in sorted(self._routes.items()):
            for name in sorted(name for name in route.brokers if route.leader_address(name) is None):
                yield f"topic {topic}: broker group {name} has no leader"

    def close(self) -> None:
        """Close all connections, and open no more. Requests in flight fail at once."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close("closed by this client")

    async def unregister(
        self, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister the client from all connected brokers. Waits for each answer for a second at most."""
        leaver = UnregisterClientExt(client_id=client_id, producer_group=producer_group, consumer_group=consumer_group)

        async def say(connection: Connection) -> None:
            try:
                await connection.request(RequestCode.UNREGISTER_CLIENT, leaver.fields(), timeout=GOODBYE_SECONDS)
            except ClientError as error:
                log.debug("unregister_failed", address=connection.address, reason=str(error))

        brokers = [c for c in self._connections.values() if c.failure is None and c.address not in self.name_servers]
        async with anyio.create_task_group() as tasks:
            for connection in brokers:
                tasks.start_soon(say, connection)

    # Connections.

    def _is_closed(self) -> bool:
        return self._closed

    def find_connection(self, address: str) -> Connection | None:
        """Return the open connection to `address`; None if there is none."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.failure is None else None

    async def connection(self, address: str) -> Connection:
        """Return the open connection to `address`, or open one. Raises ConnectFailed, ClientClosed."""
        if (connection := self.find_connection(address)) is not None:
            return connection
        slot = self._slots.setdefault(address, _SharedAttempt())
        attempts_before = slot.attempts
        async with slot.lock:
            if (connection := self.find_connection(address)) is not None:
                return connection
            if slot.attempts != attempts_before and slot.failure is not None:
                raise ConnectFailed(address, _reason(slot.failure)) from slot.failure
            if self._is_closed():
                raise ClientClosed("this client is closed")
            if self._forks != forks():
                raise ClientForked("client", self._process)
            try:
                connection = await open_connection(
                    address,
                    connect_seconds=self.settings.connect_seconds,
                    silence_seconds=self.settings.silence_seconds,
                    on_server_request=self._on_server_request,
                    on_forward=self._on_forward,
                    credentials=self.settings.credentials,
                    tls=self.settings.tls,
                )
                slot.failure = None
            except ConnectFailed as error:
                slot.failure = error
                raise
            finally:
                slot.attempts += 1
            if self._is_closed():
                connection.close("closed by this client")
                await connection.run()  # ends the stream and returns
                raise ClientClosed("this client is closed")
            self._connections[address] = connection
            self._tasks.start_soon(self._run_connection, connection)
            self._send_heartbeat(connection)
            self.emit(ClientEvent("connected", address))  # last: it may raise what ends the program
            return connection

    async def _run_connection(self, connection: Connection) -> None:
        try:
            # The last requests of a cancelled client use it; `close` ends it.
            with anyio.CancelScope(shield=True):
                await connection.run()
        finally:
            if self._connections.get(connection.address) is connection:
                del self._connections[connection.address]
        if not self._closed:
            log.info("connection_lost", address=connection.address, reason=str(connection.failure))
            self.emit(ClientEvent("lost", connection.address, str(connection.failure)))

    async def call(
        self,
        address: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> tuple[Response, memoryview]:
        """Send a request to a broker. Raises BrokerError unless it succeeds, and the errors of `Connection.request`."""
        connection = await self.connection(address)
        seconds = self.settings.request_seconds if timeout is None else timeout
        return await connection.call(code, ext, body, timeout=seconds)

    # Name servers and routes.

    async def ask_name_server(self, code: int, ext: dict[str, str] | None = None) -> tuple[Response, memoryview]:
        """Ask the name servers in turn, and return the first answer, with any code. Raises NameServersUnavailable.

        The last one has `request_seconds` to answer; an earlier one only `silence_seconds`: it may have been cut off
        together with the broker in question.
        """
        reasons: dict[str, str] = {}
        patience = self.settings.request_seconds
        for others in reversed(range(len(self.name_servers))):
            address = self.name_servers[self._name_server]
            try:
                connection = await self.connection(address)
                seconds = min(patience, self.settings.silence_seconds) if others else patience
                response, body = await connection.request(code, ext, timeout=seconds)
                if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or code not in _ALL_NAME_SERVERS_KNOW:
                    self._unavailable = None
                    self.has_heard = True
                    return response, body
                reasons[address] = f"not a name server: it does not support request {code}; is it a broker's address?"
            except ConnectFailed as error:
                reasons[address] = error.reason
            except (ConnectionLost, RequestTimeout) as error:
                reasons[address] = str(error)
            self._name_server = (self._name_server + 1) % len(self.name_servers)
        self._unavailable = NameServersUnavailable(reasons)
        raise copy_of(self._unavailable)

    def prefer_name_server(self, address: str) -> None:
        """Ask this name server first from now on."""
        self._name_server = self.name_servers.index(address)
        self._unavailable = None
        self.has_heard = True

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route of a topic; None if none is cached."""
        return self._routes.get(topic)

    async def route(self, topic: str, *, refresh: bool = False, auto_create: bool = False) -> TopicRoute:
        """Return the route of `topic`. Asks a name server if it is not cached, or if `refresh` is set.

        With `auto_create`, an unknown topic gets the queues that the brokers will create with its first message. Raises
        TopicNotFound, NameServersUnavailable, BrokerError; the cached route is then unchanged.
        """
        if not refresh and (route := self._routes.get(topic)) is not None:
            return route
        slot = self._looking_up.setdefault(topic, _SharedAttempt())
        attempts_before = slot.attempts
        async with slot.lock:
            route = self._routes.get(topic)
            if slot.attempts != attempts_before:
                # Others asked while this call waited; if each asked again, the last would wait for all their timeouts.
                if slot.failure is not None and not isinstance(slot.failure, TopicNotFound):
                    raise copy_of(slot.failure) from slot.failure
                if slot.failure is None and route is not None:
                    return route
            try:
                route = await self._look_up(topic, auto_create=auto_create)
                slot.failure = None
            except ClientError as error:
                slot.failure = error
                raise
            finally:
                slot.attempts += 1
        if self._routes.get(topic) != route:
            self._routes[topic] = route
            for name, replicas in route.brokers.items():
                self._group_at.update(dict.fromkeys(replicas.values(), name))
            if self._on_route_change is not None:
                self._on_route_change(route)
        return route

    async def _look_up(self, topic: str, *, auto_create: bool) -> TopicRoute:
        candidates: list[tuple[str, int | None]] = [(topic, None)]
        if auto_create:
            candidates.append((AUTO_CREATE_TEMPLATE, AUTO_CREATE_QUEUES_MAX))
        for name, queues_max in candidates:
            ext = RouteExt(topic=name, accept_standard_json_only=True)
            response, body = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext.fields())
            if response.code == ResponseCode.SUCCESS:
                return TopicRoute.from_body(topic, read_body(Route.decode, body), queues_max=queues_max)
            if response.code != ResponseCode.TOPIC_NOT_EXIST:
                raise BrokerError(response.code, response.remark, self.name_servers[self._name_server])
        raise TopicNotFound(topic)

    async def _leader_for(self, address: str) -> str | None:
        """Return the current leader of the group of the broker at `address`; None if unknown. Raises ClientError.

        The cached routes do not change: their users refresh them when their connection is gone.
        """
        name = self._group_at.get(address)
        for topic in [topic for topic, route in self._routes.items() if name in route.brokers]:
            try:
                return (await self._look_up(topic, auto_create=True)).leader_address(name or "")
            except TopicNotFound:
                pass  # deleted in the meantime; another topic of the group will do
        return None

    def _on_forward(self, address: str) -> None:
        """Look up the leader, to save a hop: the broker at `address` only forwards requests to it."""
        now = anyio.current_time()
        if now < self._ask_again_at or self._closed:
            return
        name = self._group_at.get(address, "")
        topics = [topic for topic, route in self._routes.items() if route.leader_address(name) == address]
        if topics:
            self._ask_again_at = now + FORWARDED_PAUSE_SECONDS
            self._tasks.start_soon(self._refresh_routes, topics)

    async def _refresh_routes(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                await self.route(topic, refresh=True)
            except ClientError as error:
                log.warning("route_refresh_failed", topic=topic, reason=str(error))

    async def _refresh_routes_forever(self) -> None:
        while True:
            await anyio.sleep(self.settings.route_refresh_seconds)
            await self._refresh_routes(list(self._routes))

    # Heartbeats.

    def heartbeat_soon(self) -> None:
        """Send the changed heartbeat now instead of within 30 s."""
        self._heartbeat_wanted.set()

    async def connect_all(self, addresses: Iterable[str]) -> None:
        """Connect to those of these addresses that have no connection, all at once. Failed ones are retried later."""

        async def connect(address: str) -> None:
            try:
                await self.connection(address)
            except ConnectFailed as error:
                log.debug("broker_unreachable", address=address, reason=error.reason)

        closed_addresses = [address for address in addresses if self.find_connection(address) is None]
        if closed_addresses:
            async with anyio.create_task_group() as tasks:
                for address in closed_addresses:
                    tasks.start_soon(connect, address)

    async def _heartbeat_forever(self) -> None:
        while True:
            with anyio.move_on_after(self.settings.heartbeat_seconds):
                await self._heartbeat_wanted.wait()
            self._heartbeat_wanted = anyio.Event()
            for connection in list(self._connections.values()):
                self._send_heartbeat(connection)

    def _send_heartbeat(self, connection: Connection) -> None:
        if self._heartbeat_body is None or connection.address in self.name_servers or connection.failure is not None:
            return

        response_event = anyio.Event()

        def on_response(response: ResponseOrLoss, body: memoryview) -> None:
            response_event.set()
            if isinstance(response, Response) and response.code != ResponseCode.SUCCESS:
                log.warning("heartbeat_refused", address=connection.address, code=response.code, remark=response.remark)

        opaque = connection.request_nowait(RequestCode.HEART_BEAT, None, self._heartbeat_body(), on_response)
        self._tasks.start_soon(self._await_heartbeat, connection, opaque, response_event)

    async def _await_heartbeat(self, connection: Connection, opaque: int, response_event: anyio.Event) -> None:
        with anyio.move_on_after(self.settings.request_seconds):
            await response_event.wait()
            return
        connection.forget(opaque)
        connection.on_timeout(self.settings.request_seconds)
