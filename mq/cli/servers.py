"""`raftmq namesrv` and `raftmq broker`: run one server in the foreground until a signal."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import structlog
import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mq.cli.config import read_conf
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from mq.cli.logs import LEVELS, configure_logging
from mq.cli.running import run_server

if TYPE_CHECKING:
    from mq.broker.settings import BrokerSettings
    from mq.settings import ProcessSettings

T = TypeVar("T")

_PROPERTIES_SUFFIXES = (".conf", ".properties")

LogLevel = Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.", metavar="LEVEL")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings in TOML; flags override it.", metavar="FILE")
]
OtherSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting as NAME=VALUE; may be repeated.", metavar="NAME=VALUE"),
]
WithParent = Annotated[
    bool, typer.Option("--until-stdin-closes", hidden=True, help="Stop when the parent process has ended.")
]


def namesrv(
    listen: Annotated[
        str | None, typer.Option(help="Where brokers and clients connect; default: 0.0.0.0:9876.", metavar="HOST:PORT")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in TOML; flags override it.", metavar="FILE")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the key-value configuration is kept.")] = None,
    setting: OtherSettings = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a name server, which tells clients the brokers.

    Clients learn from it which broker leads which group.
    """
    from mq.certificate import CertificateUnusable
    from mq.namesrv.kv_file import KvFileDamaged
    from mq.namesrv.server import serve
    from mq.namesrv.settings import NamesrvSettings
    from mq.protocol.access.plain_acl import AclFileInvalid

    flags: dict[str, object] = {"data_dir": data_dir, **split_settings(setting or [])}
    if listen is not None:
        flags["listen_host"], flags["listen_port"] = split_address(listen)
    settings = load_settings(lambda: NamesrvSettings.load(config, **flags), config)
    configure_logging(checked_level(log_level))
    _report_former_names(settings, "namesrv")
    try:
        run_server(lambda: serve(settings), until_stdin_closes=until_stdin_closes)
    except CertificateUnusable as error:
        raise CommandFailed(str(error)) from error
    except (AclFileInvalid, UnicodeDecodeError) as error:
        raise CommandFailed(f"{settings.acl_file}: {error}") from error
    except KvFileDamaged as error:
        raise CommandFailed(f"the key-value configuration cannot be read: {error}") from error
    except OSError as error:
        where = error.filename or f"cannot listen on {settings.listen_host}:{settings.listen_port}"
        code = EXIT_REFUSED if str(where) == str(settings.acl_file) else EXIT_FAILED
        raise CommandFailed(f"{where}: {error.strerror or error}", code) from error


def broker(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="Settings in TOML, or RocketMQ's broker.conf; flags override it.", metavar="FILE"
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None,
    group: Annotated[str | None, typer.Option(help="Broker name: one Raft group.")] = None,
    node_id: Annotated[str | None, typer.Option(help="This replica: n0, n1, ...")] = None,
    peers: Annotated[str | None, typer.Option(help="All replicas: n0@HOST:PORT,n1@HOST:PORT,...")] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Start empty and wait for `raftmq group add`; needs --replication-listen.")
    ] = False,
    replication_listen: Annotated[
        str | None, typer.Option(help="Where other replicas connect; default: as in --peers.", metavar="HOST:PORT")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Where clients connect.", metavar="HOST:PORT")] = None,
    namesrv: Annotated[str | None, typer.Option(help="Name servers, separated by semicolons.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Directory of the log and of all data derived from it.")] = None,
    durability: Annotated[str | None, typer.Option(help="quorum-fsync, or the weaker quorum-memory.")] = None,
    setting: OtherSettings = None,
    log_level: LogLevel = "info",
    until_stdin_closes: WithParent = False,
) -> None:
    """Run one replica of a broker group."""
    from mq.broker.security import StartRefused
    from mq.broker.server import serve
    from mq.broker.settings import BrokerSettings
    from raftlog import SegmentError

    flags: dict[str, object] = {
        "cluster": cluster,
        "group": group,
        "node_id": node_id,
        "peers": peers,
        "joins_group": join or None,
        "replication_listen": replication_listen,
        "listen": listen,
        "namesrv": namesrv,
        "data_dir": data_dir,
        "durability": durability,
        **split_settings(setting or []),
    }
    warnings: list[str] = []
    if config is not None and config.suffix in _PROPERTIES_SUFFIXES:
        conf = read_conf(config)
        file_settings, warnings = conf.settings, conf.warnings
        options = {name: value for name, value in flags.items() if value is not None}
        settings = load_settings(lambda: BrokerSettings(**(file_settings | options)), config)
    else:
        settings = load_settings(lambda: BrokerSettings.load(config, **flags), config)
    _check_replica_named(settings)
    configure_logging(checked_level(log_level))
    _report_former_names(settings, "broker")
    for warning in warnings:
        structlog.get_logger("broker").warning("setting_not_taken_over", file=str(config), reason=warning)
    try:
        run_server(lambda: serve(settings), until_stdin_closes=until_stdin_closes)
    except StartRefused as error:
        raise CommandFailed(str(error), EXIT_FAILED if error.may_pass else EXIT_REFUSED) from error
    except SegmentError as error:
        raise CommandFailed(f"the log in {settings.data_dir} cannot be used: {error}", EXIT_FAILED) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or settings.data_dir}: {error.strerror or error}", EXIT_FAILED) from error


def _report_former_names(settings: ProcessSettings, source: str) -> None:
    for former in settings.former_names_used:
        structlog.get_logger(source).warning("setting_renamed", former=former, setting=settings.former_names[former])


def _check_replica_named(settings: BrokerSettings) -> None:
    """Refuse to found or join a group implicitly. Raises CommandFailed."""
    names = settings.model_fields_set
    if not settings.joins_group and "peers" not in names:
        raise CommandFailed(
            "--peers is missing. Pass --node-id and --peers with the replication address of each: "
            "--node-id n0 --peers n0@10.0.0.1:10931,n1@10.0.0.2:10931,n2@10.0.0.3:10931. "
            "A group of one replica: --peers n0@127.0.0.1:10931. To join a group that exists: --join. "
            "To try a group of three on this machine: raftmq dev"
        )
    if "node_id" not in names and (settings.joins_group or len(settings.members) > 1):
        raise CommandFailed("--node-id is missing. It differs on every replica of the group")


def split_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` to a pair. Raises CommandFailed."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise CommandFailed(f"{text!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise CommandFailed(f"{text!r}: an IPv6 address needs brackets, as in [::1]:9876")
    return host.strip("[]"), int(port)


def split_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts to a dict. Raises CommandFailed."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise CommandFailed(f"--set {pair!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def checked_level(level: str) -> str:
    """Return ``level`` if it is a valid log level. Raises CommandFailed."""
    if level not in LEVELS:
        raise CommandFailed(f"--log-level {level!r} is not one of {', '.join(LEVELS)}")
    return level


def _fault(fault: ErrorDetails) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"there is no setting {name}"
    return (f"{name}: " if name else "") + fault["msg"].removeprefix("Value error, ")


def load_settings(load: Callable[[], T], config: Path | None = None) -> T:
    """Return the result of ``load``. For invalid settings, raises CommandFailed with file, setting and error."""
    where = f"{config}: " if config is not None else ""
    try:
        return load()
    except ValidationError as error:
        raise CommandFailed(where + "; ".join(map(_fault, error.errors()))) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{where}is not TOML: {error}") from error
    except OSError as error:
        raise CommandFailed(f"{where}{error.strerror or error}") from error
