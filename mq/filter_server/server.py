"""Runs the filter server process: registers it at its broker, listens, and serves until cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from mq.certificate import Certificate
from mq.client.net.client_core import RemotingSettings, parse_addresses
from mq.client.net.identity import new_client_id
from mq.filter_server.broker_link import BrokerLink
from mq.filter_server.connections import Connections
from mq.filter_server.figures import FilterCounters, collect
from mq.filter_server.filtered_pulls import FilteredPulls
from mq.filter_server.java_filters import JavaSandbox
from mq.filter_server.loaded_programs import Programs
from mq.filter_server.settings import FilterServerSettings
from mq.filter_server.wasm_sandbox import EPOCH_SECONDS, Sandbox
from mq.monitoring.http import Monitoring, open_metrics_listeners

_LOOK_SECONDS: Final = 1.0

Log = structlog.stdlib.BoundLogger


async def serve(
    settings: FilterServerSettings,
    *,
    remoting: RemotingSettings | None = None,
    log: Log | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a filter server until cancelled. ``task_status`` gets the address that it listens on.

    Args:
        remoting: how it talks to name servers and brokers; by default as the environment says, as every client.

    Raises:
        OSError: it cannot listen there.
        CertificateUnusable: the files are not a certificate with its key.
        ProgramInvalid: Java filters are allowed, and this machine cannot run them.
    """
    log = structlog.get_logger("filter-server") if log is None else log
    remoting = RemotingSettings() if remoting is None else remoting
    certificate: Certificate | None = None
    if settings.tls_mode != "disabled" and settings.tls_certificate is not None and settings.tls_key is not None:
        files = settings.tls_certificate, settings.tls_key, settings.tls_clients_ca
        certificate = Certificate(*files, log, lambda: time.time_ns() // 1_000_000)
    sandbox = Sandbox(settings.wasm_limits)
    java: JavaSandbox | None = None
    if settings.allow_java:
        java = await trio.to_thread.run_sync(JavaSandbox, settings.java_limits, settings.java_class_path)
        log.info("java_filters_allowed", network="yes" if java.has_network else "no")
    listeners = await trio.open_tcp_listeners(settings.listen_port, host=settings.listen_host)
    host, port = listeners[0].socket.getsockname()[:2]
    address = settings.advertise or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    figures = FilterCounters()
    log.info("listening", host=host, port=port)
    try:
        async with (
            BrokerLink.open(parse_addresses(settings.namesrv), settings.broker, new_client_id(), remoting, log) as link,
            trio.open_nursery() as nursery,
        ):
            programs = Programs(
                sandbox,
                link.get,
                link.get_current,
                programs_max=settings.programs_max,
                group_share=settings.group_share,
                java=java,
            )
            pulls = FilteredPulls(
                link,
                programs,
                figures,
                threads=settings.threads_max,
                body_bytes_max=settings.body_bytes_max,
                clock=trio.current_time,
                log=log,
            )
            connections = Connections(
                link,
                programs,
                pulls,
                figures,
                certificate=certificate,
                must_use_tls=settings.tls_mode == "enforcing",
                connections_max=settings.connections_max,
                pulls_max=settings.pulls_max,
                log=log,
            )

            async def reason() -> str | None:
                await trio.lowlevel.checkpoint()
                return link.trouble

            monitoring_listeners = await open_metrics_listeners(
                settings.metrics_address, log, is_required=settings.metrics_listen is not None
            )
            if monitoring_listeners:
                monitoring = Monitoring(lambda: collect(figures), reason)
                nursery.start_soon(monitoring.serve, monitoring_listeners)
            # A filter that runs for too long is stopped by its count of ticks.
            nursery.start_soon(_repeat, EPOCH_SECONDS, sandbox.tick)
            if java is not None:
                nursery.start_soon(_look_at_machines, java)
            if certificate is not None:
                nursery.start_soon(_repeat, _LOOK_SECONDS, certificate.refresh)
            await nursery.start(partial(trio.serve_listeners, connections.serve, listeners))
            nursery.start_soon(link.stay_registered, address)
            task_status.started((host, port))
    finally:
        if java is not None:
            java.close()
        log.info("stopped", host=host, port=port)


async def _repeat(seconds: float, action: Callable[[], None]) -> None:
    while True:
        await trio.sleep(seconds)
        action()


async def _look_at_machines(java: JavaSandbox) -> None:
    while True:
        await trio.sleep(_LOOK_SECONDS)
        await trio.to_thread.run_sync(java.end_idle_processes)
