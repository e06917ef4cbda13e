"""Runs the console process: listens, serves, stops."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http

from mq.client.net.client_core import RemotingSettings
from mq.console.app import Console
from mq.console.settings import ConsoleSettings
from mq.console.users import Users

DRAIN_SECONDS: Final = 1.0
READ_SECONDS: Final = 30
"""Seconds for a request to arrive, and for the next one on a connection."""
HEADER_BYTES_MAX: Final = 64 * 1024

Log = structlog.stdlib.BoundLogger


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def serve(
    settings: ConsoleSettings,
    *,
    remoting: RemotingSettings | None = None,
    log: Log | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a console until cancelled. ``task_status`` gets its address, ``http://127.0.0.1:8090``.

    Args:
        remoting: how it talks to name servers and brokers; by default as the environment says, as every client.

    Raises OSError: it cannot listen there, or the files with the certificate cannot be read.
    """
    log = structlog.get_logger("console") if log is None else log
    remoting = RemotingSettings() if remoting is None else remoting
    config = Config()
    host = f"[{settings.listen_host}]" if ":" in settings.listen_host else settings.listen_host
    config.bind = [f"{host}:{settings.listen_port}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = DRAIN_SECONDS
    config.keep_alive_timeout = READ_SECONDS
    config.read_timeout = READ_SECONDS
    config.h11_max_incomplete_size = HEADER_BYTES_MAX
    config.include_server_header = False
    if settings.tls_certificate is not None:
        config.certfile, config.keyfile = str(settings.tls_certificate), str(settings.tls_key)
        try:
            config.create_ssl_context()
        except OSError as error:
            names = f"tls_certificate {settings.tls_certificate}, tls_key {settings.tls_key}"
            raise OSError(error.errno, error.strerror or str(error), names) from error
    async with trio.open_nursery() as nursery:
        users = Users(settings.namesrv, remoting, nursery)
        console = Console(settings, users, log, wall_clock_ms)
        app = cast("Any", console.app())

        async def run(task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
            stop: Callable[[], Awaitable[None]] = trio.sleep_forever
            await serve_http(app, config, shutdown_trigger=stop, task_status=task_status)

        [address] = await nursery.start(run)
        port = int(address.rpartition(":")[2])
        log.info("listening", host=settings.listen_host, port=port)
        task_status.started(address)
        try:
            await trio.sleep_forever()
        finally:
            log.info("stopped", host=settings.listen_host, port=port)
