"""`raftmq dev`: runs whole broker groups on this machine, without configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import trio
import typer
from rich.console import Console

from mq.addresses import metrics_address_beside
from mq.cli.dev_disk import check_disk, watch_disk
from mq.cli.dev_restart import ask_restart, find_group, serve_restarts
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json
from mq.cli.running import cancel_on_signal, cancel_on_stdin_end
from mq.cli.servers import WithParent, load_settings, split_settings
from mq.local_cluster import HOST, DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.local_cluster.cluster import WATCH_SECONDS
from mq.local_cluster.groups import GROUPS_MAX, count_groups, group_directory, group_name, open_groups

if TYPE_CHECKING:
    from mq.broker.settings import BrokerSettings

_PORT_MIN: Final = 1024
PROXY_PORT: Final = 8081
CONSOLE_PORT: Final = 8090
_EPHEMERAL: Final = {"segment_bytes": str(16 * 1024 * 1024), **ANY_DISK}


def dev(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for data and logs; kept between runs.")
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="For tests: use a temporary directory, which is removed at the end.")
    ] = False,
    nodes: Annotated[
        int | None, typer.Option(help="Replicas of each group: 1, 3 or 5. Default: 3, with --ephemeral 1.")
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=GROUPS_MAX,
            help="Broker groups, to use many cores; may grow with the next start. Default: as the last time, or 1.",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            "--port",
            min=0,
            max=62_000,
            help="Port of the name server. Brokers get the next ports, those of each further group 200 more. 0: any "
            "free ports. Default: 9876, and 10911 and up for brokers.",
        ),
    ] = None,
    proxy: Annotated[
        bool,
        typer.Option("--proxy", help="Also run a proxy for gRPC clients, on port 8081; with --port 0 on any free one."),
    ] = False,
    restart: Annotated[
        str | None,
        typer.Option(
            "--restart",
            help="Restart this replica of the `raftmq dev` that runs in the directory, and exit when it serves again.",
            metavar="[GROUP:]NODE",
        ),
    ] = None,
    console: Annotated[
        bool,
        typer.Option("--console", help="Also run a web console, on port 8090; with --port 0 on any free one."),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of all brokers; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    as_json: Json = False,
    until_stdin_closes: WithParent = False,
) -> None:
    """Run a name server and groups of brokers until ctrl-C. A second run in the same directory finds all data.

    With --json it prints one line when clients are served, with all addresses.
    """
    if ephemeral != (directory is None):
        raise CommandFailed("give a directory with --dir, or --ephemeral for one that is removed at the end")
    if restart is not None:
        if directory is None:
            raise CommandFailed("give the directory in which raftmq dev runs with --dir")
        _restart(directory, restart)
        return
    nodes = nodes or (1 if ephemeral else 3)
    if nodes not in (1, 3, 5):
        raise CommandFailed(f"--nodes {nodes}: a group has 1, 3 or 5 replicas")
    if base_port is not None and 0 < base_port < _PORT_MIN:
        raise CommandFailed(f"--port {base_port}: a port from {_PORT_MIN} on, or 0 for any free ones")
    settings = (_EPHEMERAL if ephemeral else {}) | split_settings(setting or [])
    ratios = _checked_settings(settings)
    terminal = Console(soft_wrap=True, stderr=as_json)
    servers = {"proxy": PROXY_PORT} if proxy else {}
    servers |= {"console": CONSOLE_PORT} if console else {}
    try:
        with nullcontext(directory) if directory is not None else _new_directory() as home:
            _run(home, nodes, groups, base_port, servers, settings, ratios, terminal, as_json, until_stdin_closes)
    except ServersFailed as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or directory}: {error.strerror or error}") from error
    if not ephemeral:
        terminal.print("stopped; all data is kept in", str(directory))


def _restart(directory: Path, node: str) -> None:
    groups = [(group_name(number), group_directory(directory, number)) for number in range(count_groups(directory))]
    try:
        home, node_id = find_group(directory, groups, node)
        run_trio(partial(ask_restart, home.resolve(), node_id))
    except ServersFailed as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or directory}: {error.strerror or error}", EXIT_FAILED) from error
    print(f"{node} is restarted and serves")


@contextmanager
def _new_directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="raftmq-dev-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _run(
    directory: Path,
    nodes: int,
    groups: int | None,
    base_port: int | None,
    servers: dict[str, int],
    settings: dict[str, str],
    ratios: BrokerSettings,
    console: Console,
    as_json: bool,
    until_stdin_closes: bool,
) -> None:
    """Run servers until a signal, or the end of standard input. Raises ServersFailed, OSError."""
    ports: Ports | None = None
    if base_port == 0:
        ports = Ports.free(nodes, groups=groups or 1)
    elif base_port is not None:
        ports = Ports.from_base(base_port, nodes)

    def warn(text: str) -> None:
        console.print(f"warning: {text}", highlight=False)

    async def main() -> None:
        if (note := check_disk(directory, ratios, is_new=not count_groups(directory))) is not None:
            warn(note)
        async with trio.open_nursery() as nursery:
            await nursery.start(cancel_on_signal, nursery.cancel_scope)
            async with open_groups(
                directory,
                groups,
                nodes=nodes,
                ports=ports,
                settings=settings,
                on_progress=lambda text: console.print(f"{text} ..."),
            ) as clusters:
                start = {"proxy": clusters[0].start_proxy, "console": clusters[0].start_console}
                addresses = {}
                for name, usual_port in servers.items():
                    console.print(f"starting the {name} ...")
                    addresses[name] = f"{HOST}:{await start[name](0 if base_port == 0 else usual_port)}"
                if as_json:
                    print(json.dumps(await _announcement(clusters, addresses)), flush=True)
                else:
                    await _announce(clusters, addresses, console)
                async with trio.open_nursery() as watchers:
                    watchers.start_soon(_say_who_ends, directory, clusters, console)
                    watchers.start_soon(serve_restarts, clusters)
                    watchers.start_soon(watch_disk, directory, ratios, warn)
                    if until_stdin_closes:
                        watchers.start_soon(cancel_on_stdin_end, nursery.cancel_scope)

    run_trio(main)


def _checked_settings(settings: dict[str, str]) -> BrokerSettings:
    """The settings of a broker: detects mistakes before anything is started or written. Raises CommandFailed."""
    from mq.broker.settings import BrokerSettings

    ours: dict[str, Any] = {"node_id": "n0", "peers": f"n0@{HOST}:10931", "listen": f"{HOST}:10911"}
    return load_settings(lambda: BrokerSettings.load(**(ours | settings)))


async def _say_who_ends(directory: Path, clusters: list[DevCluster], console: Console) -> None:
    """Runs until cancelled. The others run on: a user may kill a replica to see what happens."""
    names_shown = set[tuple[str, str]]()
    while True:
        for cluster in clusters:
            exit_codes = cluster.exit_codes()
            names_shown -= {(cluster.group, name) for _, name in names_shown if name not in exit_codes}  # restarted
            for name, code in exit_codes.items():
                if (cluster.group, name) not in names_shown:
                    names_shown.add((cluster.group, name))
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    replica = name if len(clusters) == 1 else f"{cluster.group}:{name}"
                    remedy = (
                        f"raftmq dev --dir {directory} --restart {replica}"
                        if name in cluster.node_ids
                        else "stop raftmq dev with ctrl-C and start it again"
                    )
                    console.print(
                        f"{name} {how}; its log is {cluster.log_path(name)}. The others continue. To start it again: "
                        f"{remedy}",
                        highlight=False,
                    )
        await trio.sleep(WATCH_SECONDS)


async def _announcement(clusters: list[DevCluster], addresses: dict[str, str]) -> dict[str, object]:
    """The addresses, processes and directories of the running servers, for programs that use them."""
    return {
        "namesrv": clusters[0].namesrv,
        **addresses,
        "broker_groups": [
            {
                "name": cluster.group,
                "leader": await cluster.leader(),
                "replicas": [
                    {"node_id": node_id, "address": cluster.address(node_id), "pid": cluster.pid(node_id)}
                    for node_id in cluster.node_ids
                ],
                "logs": str(cluster.directory / "logs"),
            }
            for cluster in clusters
        ],
    }


async def _announce(clusters: list[DevCluster], addresses: dict[str, str], console: Console) -> None:
    first = clusters[0]
    console.print(f"name server   {first.namesrv}")
    if "proxy" in addresses:
        console.print(f"proxy         {addresses['proxy']}  (gRPC)")
    if "console" in addresses:
        console.print(f"console       http://{addresses['console']}")
    for cluster in clusters:
        leader = await cluster.leader()
        if len(clusters) > 1:
            console.print(f"{cluster.group}:")
        for node_id in cluster.node_ids:
            console.print(f"{node_id:13s} {cluster.address(node_id)}{'  (leader)' if node_id == leader else ''}")
    metrics = metrics_address_beside((HOST, first.ports.clients[0]))
    if metrics is not None:
        console.print(f"metrics       http://{metrics[0]}:{metrics[1]}/metrics; 100 above the port of each server")
    for cluster in clusters:
        console.print(f"logs          {cluster.directory / 'logs'}")
    option = "" if first.namesrv == "127.0.0.1:9876" else f" --namesrv {first.namesrv}"
    console.print("\nIn another terminal:", highlight=False)
    console.print(f"  echo hello | raftmq produce Greetings{option}", highlight=False)
    console.print(f"  raftmq consume Greetings --group readers --count 1{option}", highlight=False)
    console.print(f"  raftmq status{option}\n", highlight=False)
    console.print("ready; ctrl-C stops everything", highlight=False)
