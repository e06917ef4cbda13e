"""`raftmq console`: run a web console in the foreground until a signal."""

from __future__ import annotations

from typing import Annotated

import typer

from mq.cli.errors import CommandFailed
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

_LIBRARIES = ("hypercorn", "jinja2", "starlette")


def console(
    namesrv: Annotated[str | None, typer.Option(help="Name servers, separated by semicolons.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where browsers connect; default: 127.0.0.1:8090.", metavar="HOST:PORT")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port alone.", metavar="PORT", min=0, max=65535)] = None,
    login: Annotated[
        bool, typer.Option("--login", help="People log in with their access key; brokers decide what each may do.")
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="Show buttons that change something; without it, pages are read-only."),
    ] = False,
    hide_bodies: Annotated[
        bool, typer.Option("--hide-bodies", help="Show no bodies of messages, and no properties but tags and keys.")
    ] = False,
    config: ConfigFile = None,
    setting: OtherSettings = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a web console for the cluster.

    Its pages show the cluster in a browser, and change it if that is allowed. It needs no data of its own. Other
    machines can reach it only with --login.
    """
    try:
        from mq.console.server import serve
        from mq.console.settings import ConsoleSettings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _LIBRARIES:
            raise
        raise CommandFailed(f"the console needs {error.name}: pip install 'raftmq[server,console]'") from error
    from mq.client.net.credentials import CredentialsInvalid

    flags: dict[str, object] = {
        "namesrv": namesrv,
        "login": login or None,
        "allow_changes": allow_changes or None,
        "hide_bodies": hide_bodies or None,
        **split_settings(setting or []),
    }
    if listen is not None:
        flags["listen_host"], flags["listen_port"] = split_address(listen)
    if port is not None:
        flags["listen_port"] = port
    settings = load_settings(lambda: ConsoleSettings.load(config, **flags), config)
    configure_logging(checked_level(log_level))
    try:
        run_server(lambda: serve(settings), until_stdin_closes=until_stdin_closes)
    except CredentialsInvalid as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        where = error.filename or f"cannot listen on {settings.listen_host}:{settings.listen_port}"
        raise CommandFailed(f"{where}: {error.strerror or error}") from error
