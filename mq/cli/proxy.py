"""`raftmq proxy`: run a proxy for gRPC clients in the foreground until a signal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.logs import configure_logging
from mq.cli.servers import LogLevel, WithParent, checked, checked_level, run_server, split_address, split_settings


def proxy(
    namesrv: Annotated[str | None, typer.Option(help="Name servers, separated by semicolons.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where gRPC clients connect; default: 0.0.0.0:8081.", metavar="HOST:PORT")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port alone.", metavar="PORT", min=0, max=65535)] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Settings in TOML; flags override it.", metavar="FILE")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting as NAME=VALUE; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a proxy for gRPC clients of RocketMQ 5, in front of the brokers.

    Start any number of them. SIGTERM ends calls and telemetry streams first, so that clients go on with another proxy.
    """
    try:
        from mq.proxy.server import serve
        from mq.proxy.settings import ProxySettings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("h2", "hpack", "hyperframe", "google"):
            raise
        raise CommandFailed(f"the proxy needs {error.name}: pip install 'raftmq[server,proxy]'") from error
    from mq.client.net.credentials import CredentialsInvalid
    from mq.tls import CertificateUnusable

    flags: dict[str, object] = {"namesrv": namesrv, **split_settings(setting or [])}
    if listen is not None:
        flags["listen_host"], flags["listen_port"] = split_address(listen)
    if port is not None:
        flags["listen_port"] = port
    settings = checked(lambda: ProxySettings.load(config, **flags), config)
    configure_logging(checked_level(log_level))
    draining = trio.Event()
    try:
        run_server(
            lambda: serve(settings, draining=draining), until_stdin_closes=until_stdin_closes, on_stop=draining.set
        )
    except (CertificateUnusable, CredentialsInvalid) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        where = error.filename or f"cannot listen on {settings.listen_host}:{settings.listen_port}"
        raise CommandFailed(f"{where}: {error.strerror or error}", EXIT_FAILED) from error
