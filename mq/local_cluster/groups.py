"""Runs several broker groups with one name server on one machine, to use many cores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

from mq.durable_files import replace_file
from mq.local_cluster.cluster import DevCluster
from mq.local_cluster.ports import PORTS_FILE, Ports, check_ports_of_new_directory, load_ports
from mq.local_cluster.processes import ServersFailed

GROUPS_MAX = 16
SEGMENT_BYTES = 64 * 1024 * 1024
"""Each replica reserves this much at once; small, since a user who tries things out should not need gigabytes."""


def group_name(number: int) -> str:
    """Return the name of the group with this number: ``broker-a``, ``broker-b``, ..."""
    return f"broker-{chr(ord('a') + number)}"


def group_directory(directory: Path, number: int) -> Path:
    """Return the directory of a group's data and logs: ``directory`` for the first group, else a subdirectory."""
    return directory / group_name(number) if number else directory


def count_groups(directory: Path) -> int:
    """Return how many groups were started in that directory before; 0 if it is new."""
    return next(number for number in count() if not (group_directory(directory, number) / PORTS_FILE).exists())


@asynccontextmanager
async def open_groups(
    directory: Path,
    groups: int | None = None,
    *,
    nodes: int = 3,
    ports: Ports | None = None,
    settings: Mapping[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[list[DevCluster]]:
    """Start a name server and groups of ``nodes`` replicas each. Stops all of them at the end.

    Args:
        groups: at least as many as the directory has; default: that number, or one.
        ports: for the first group, see `Ports.of_group`; default: as in `DevCluster.open`.
        settings: further settings of every broker. Without ``segment_bytes``, new groups have small log files.
        on_progress: called with a text about what is being waited for.

    Raises:
        ServersFailed: as `DevCluster.open`; or the directory has more groups.
        OSError: the directory cannot be used.
    """
    group_count = count_groups(directory)
    groups = groups or max(group_count, 1)
    if groups < group_count:
        raise ServersFailed(f"{directory} holds {group_count} broker groups with messages: {groups} would omit some")
    ports_by_group = [_ports_of(directory, number, nodes, ports) for number in range(groups)]
    for number, each in enumerate(ports_by_group):
        shared_namesrv = each.namesrv if each is not None and number else None
        check_ports_of_new_directory(group_directory(directory, number), nodes, each, shared_namesrv)
    clusters = list[DevCluster]()
    async with AsyncExitStack() as stack:
        for number in range(groups):
            name, home = group_name(number), group_directory(directory, number)
            own = dict(settings or {})
            set_segment_bytes(home, own)
            # One group after the other: each uses all cores of a small machine while it starts.
            cluster = DevCluster.open(
                home,
                nodes=nodes,
                ports=ports_by_group[number],
                settings=own,
                group=name,
                beside=clusters[0] if clusters else None,
                on_progress=on_progress if groups == 1 else partial(_report_progress, on_progress, name),
            )
            clusters.append(await stack.enter_async_context(cluster))
        yield clusters


def _report_progress(on_progress: Callable[[str], None], name: str, text: str) -> None:
    on_progress(f"{name}: {text}")


def _ports_of(directory: Path, number: int, node_count: int, first: Ports | None) -> Ports | None:
    """The ports of a group; None to use its last ones."""
    if first is None and (group_directory(directory, number) / PORTS_FILE).exists():
        return None
    return (first or load_ports(directory / PORTS_FILE) or Ports.conventional(node_count)).of_group(number)


def set_segment_bytes(directory: Path, settings: dict[str, str]) -> None:
    """Set the log file size to that of this directory, where it never changes, unless ``settings`` have one.

    A new directory gets small files; one from before sizes were stored has the broker's default. Raises OSError.
    """
    path = directory / "segment_bytes"
    if not (directory / PORTS_FILE).exists():
        replace_file(path, settings.get("segment_bytes", str(SEGMENT_BYTES)).encode() + b"\n")
    if path.exists():
        settings.setdefault("segment_bytes", path.read_text().strip())
