"""The proxy: connects to the brokers, listens, serves and drains."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from mq.certificate import Certificate
from mq.client.net.client_core import RemotingSettings, parse_addresses
from mq.client.net.connection import RespondLater
from mq.client.net.identity import new_client_id
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.wire.request import Request
from mq.proxy.brokers import Brokers
from mq.proxy.clients import Clients
from mq.proxy.configuration import ProxyConfiguration
from mq.proxy.grpc import GrpcCounters, GrpcLimits, OwnCertificate, SelfSigned, TlsContext, health_methods, serve_grpc
from mq.proxy.mapping.authorization import AllowedTimes
from mq.proxy.service_table import SERVICE, ServiceTable

_LOOK_SECONDS: Final = 1.0
_GIVE_BACK_SECONDS: Final = 1.0
"""The time to give back messages that ended calls did not take, before the process ends."""

Log = structlog.stdlib.BoundLogger


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def serve(
    configuration: ProxyConfiguration,
    *,
    drain_event: trio.Event | None = None,
    remoting: RemotingSettings | None = None,
    log: Log | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a proxy until cancelled, or until `drain_event` is set and all calls have ended.

    ``task_status`` gets the address that it listens on.

    Args:
        remoting: how it talks to name servers and brokers; by default as the environment says, as every client.

    Raises:
        OSError: it cannot listen there.
        CertificateUnusable: the files are not a certificate with its key.
    """
    log = structlog.get_logger("proxy") if log is None else log
    drain_event = trio.Event() if drain_event is None else drain_event
    remoting = RemotingSettings() if remoting is None else remoting
    certificate, tls = _tls(configuration, log)
    listeners = await trio.open_tcp_listeners(configuration.listen_port, host=configuration.listen_host)
    host, port = listeners[0].socket.getsockname()[:2]
    counters = GrpcCounters()
    times = None if remoting.credentials is None else _allowed_times(configuration)
    log.info("listening", host=host, port=port)
    try:
        async with (
            open_table(configuration.namesrv, remoting, drain_event, log, allowed_times=times) as (table, brokers),
            trio.open_nursery() as nursery,
        ):
            if (metrics_address := configuration.metrics_address) is not None:
                # Without metrics, their libraries need no memory.
                from mq.monitoring.http import Monitoring, open_metrics_listeners
                from mq.proxy.metrics import collect

                is_required = configuration.metrics_listen is not None
                valid_until = None if certificate is None else certificate.valid_until
                if metrics_listeners := await open_metrics_listeners(metrics_address, log, is_required=is_required):
                    monitoring = Monitoring(lambda: collect(table, counters, valid_until), _ready(brokers, drain_event))
                    nursery.start_soon(monitoring.serve, metrics_listeners)
            if certificate is not None:
                nursery.start_soon(_look_at_files, certificate)
            serve_calls = partial(
                serve_grpc,
                listeners,
                {**table.methods(), **health_methods([SERVICE.strip("/")], lambda: not brokers.troubles())},
                limits=GrpcLimits(
                    connections_max=configuration.connections_max,
                    streams_max=configuration.calls_max,
                    drain_seconds_max=configuration.drain_seconds,
                ),
                tls=tls,
                trusts=configuration.trusts,
                tls_required=configuration.tls_mode == "enforcing",
                log=log,
                counters=counters,
                drain=drain_event,
            )
            async with trio.open_nursery() as calls:
                await calls.start(serve_calls)
                task_status.started((host, port))
            with trio.move_on_after(_GIVE_BACK_SECONDS):
                await table.wait_given_back()
            nursery.cancel_scope.cancel()
    finally:
        log.info("stopped", host=host, port=port)


@asynccontextmanager
async def open_table(
    namesrv: str,
    remoting: RemotingSettings,
    drain_event: trio.Event,
    log: Log,
    *,
    allowed_times: AllowedTimes | None,
    rng: random.Random | None = None,
    client_id: str | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[tuple[ServiceTable, Brokers]]:
    """Open the table of methods, connected to the brokers of these name servers, until the block ends.

    Args:
        allowed_times: the times that signatures may have; None if calls need no signature.
        client_id: how brokers call this proxy; by default a new id.
    """
    clients = Clients(random.Random() if rng is None else rng)
    tables: list[ServiceTable] = []

    def answer_broker(request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater) -> bytes | None:
        return tables[0].answer_broker(request, body, respond_later) if tables else None

    async with (
        Brokers.open(
            parse_addresses(namesrv),
            log,
            client_id=new_client_id() if client_id is None else client_id,
            producer_groups=clients.transaction_topics,
            members=clients.members,
            on_server_request=answer_broker,
            settings=remoting,
        ) as brokers,
        trio.open_nursery() as nursery,
    ):
        table = ServiceTable(brokers, clients, nursery, drain_event, clock_ms, log, allowed_times=allowed_times)
        tables.append(table)
        for task in (brokers.stay_connected, table.run):  # calls may come before these run
            nursery.start_soon(task)
        yield table, brokers
        nursery.cancel_scope.cancel()


def _tls(configuration: ProxyConfiguration, log: Log) -> tuple[Certificate | None, TlsContext | None]:
    if configuration.tls_mode == "disabled":
        return None, None
    if configuration.tls_certificate is not None and configuration.tls_key is not None:
        clients_ca = None if configuration.tls_clients_ca is None else Path(configuration.tls_clients_ca)
        files = Path(configuration.tls_certificate), Path(configuration.tls_key), clients_ca
        certificate = Certificate(*files, log, wall_clock_ms)
        return certificate, OwnCertificate(certificate)
    own = SelfSigned([configuration.listen_host], wall_clock_ms)
    log.info("certificate_made", fingerprint=own.fingerprint, valid_until=own.valid_until.isoformat())
    return None, own


async def _look_at_files(certificate: Certificate) -> None:
    while True:
        await trio.sleep(_LOOK_SECONDS)
        certificate.refresh()


def _ready(brokers: Brokers, drain_event: trio.Event) -> Callable[[], Awaitable[str | None]]:
    async def reason() -> str | None:
        """Return the reason why new clients should connect elsewhere; None if they need not."""
        await trio.lowlevel.checkpoint()
        return "the proxy is about to stop" if drain_event.is_set() else next(iter(brokers.troubles()), None)

    return reason


def _allowed_times(configuration: ProxyConfiguration) -> AllowedTimes:
    return AllowedTimes(int(1000 * configuration.signature_seconds_max), configuration.utc_offsets_ms)
