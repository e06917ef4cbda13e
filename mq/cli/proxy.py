"""`raftmq proxy`: checks the settings of a proxy for gRPC clients, then becomes that proxy."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

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


def proxy(
    namesrv: Annotated[str | None, typer.Option(help="Name servers, separated by semicolons.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where gRPC clients connect; default: 0.0.0.0:8081.", metavar="HOST:PORT")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port alone.", metavar="PORT", min=0, max=65535)] = None,
    config: ConfigFile = None,
    setting: OtherSettings = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a proxy for gRPC clients of RocketMQ 5.

    It runs in front of the brokers. Start any number of them. SIGTERM ends calls and telemetry streams first, so that
    clients go on with another proxy.
    """
    from mq.proxy.settings import ProxySettings

    flags: dict[str, object] = {"namesrv": namesrv, **split_settings(setting or [])}
    if listen is not None:
        flags["listen_host"], flags["listen_port"] = split_address(listen)
    if port is not None:
        flags["listen_port"] = port
    settings = load_settings(lambda: ProxySettings.load(config, **flags), config)
    # What has read the command line and the settings takes as much memory as half a proxy. The process stays the same
    # one, for service managers too.
    program = [sys.executable, *_module_path_option(), "-m", "mq.cli.proxy_process"]
    arguments = [settings.configuration().to_json(), checked_level(log_level)]
    if until_stdin_closes:
        arguments.append("--until-stdin-closes")
    os.execv(program[0], [*program, *arguments])  # noqa: S606 - a shell would only be in the way of signals


def _module_path_option() -> list[str]:
    """Let children import from the working directory only if this process may: it was started by ``python -m``."""
    return [] if sys.modules["__main__"].__spec__ is not None and not sys.flags.safe_path else ["-P"]
