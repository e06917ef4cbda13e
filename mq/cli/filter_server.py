"""`raftmq filter-server`: run a filter server in the foreground until a signal."""

from __future__ import annotations

from typing import Annotated

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.logs import configure_logging
from mq.cli.running import run_server
from mq.cli.servers import (
    ConfigFile,
    LogLevel,
    OtherSettings,
    WithParent,
    checked_level,
    load_settings,
    split_address,
    split_settings,
)


def filter_server(
    broker: Annotated[
        str | None, typer.Option(help="The broker beside which it runs; default: 127.0.0.1:10911.", metavar="HOST:PORT")
    ] = None,
    namesrv: Annotated[str | None, typer.Option(help="Name servers, separated by semicolons.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where consumers connect; default: 127.0.0.1:10921.", metavar="HOST:PORT")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="Address in the route, when it differs from --listen.", metavar="HOST:PORT")
    ] = None,
    allow_java: Annotated[
        bool | None,
        typer.Option(
            "--allow-java/--no-allow-java",
            help="Compile and run the filters of RocketMQ's Java clients; needs a JDK, see docs/filters.md.",
        ),
    ] = None,
    config: ConfigFile = None,
    setting: OtherSettings = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a server for filter programs of consumers.

    It runs beside a broker. Start any number of them. Consumers subscribe with WasmFilter(...) or BodyFilter(...).
    """
    try:
        from mq.filter_server.server import serve
        from mq.filter_server.settings import FilterServerSettings
    except ModuleNotFoundError as error:
        if error.name != "wasmtime":
            raise
        raise CommandFailed("the filter server needs wasmtime: pip install 'raftmq[server,filter]'") from error
    from mq.certificate import CertificateUnusable
    from mq.client.net.credentials import CredentialsInvalid
    from mq.filter.programs import ProgramInvalid

    flags: dict[str, object] = {
        "broker": broker,
        "namesrv": namesrv,
        "advertise": advertise,
        "allow_java": allow_java,
        **split_settings(setting or []),
    }
    if listen is not None:
        flags["listen_host"], flags["listen_port"] = split_address(listen)
    settings = load_settings(lambda: FilterServerSettings.load(config, **flags), config)
    configure_logging(checked_level(log_level))
    try:
        run_server(lambda: serve(settings), until_stdin_closes=until_stdin_closes)
    except (CertificateUnusable, CredentialsInvalid, ProgramInvalid) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        where = error.filename or f"cannot listen on {settings.listen_host}:{settings.listen_port}"
        raise CommandFailed(f"{where}: {error.strerror or error}", EXIT_FAILED) from error
