"""`raftmq restore`: creates the data directories of a new group's replicas from a backup."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mq.cli.backup import EndpointUrl, Pace, Target, open_store
from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, parse_time, print_json, time_of

if TYPE_CHECKING:
    from raftlog import NodeId
    from raftlog.backup_restore import Survey
    from raftlog.segment.backup import Backup

_NODE_ID = re.compile(r"[a-z]\d+")


def restore(
    target: Target,
    targets: Annotated[
        list[str], typer.Argument(metavar="NODE=DATA_DIR...", help="Id and new data directory of each replica here.")
    ],
    peers: Annotated[
        str, typer.Option(help="All replicas of the new group: n0@HOST:PORT,n1@HOST:PORT,...", metavar="PEERS")
    ],
    until: Annotated[
        str | None, typer.Option(help="End before the first message stored after this time.", metavar="TIME")
    ] = None,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Restore a backup into data directories of a new group.

    They must be empty or missing, but may hold group.secret. Give the same PEERS wherever you restore a replica of the
    group, and start the brokers with the cluster and group names that the old ones had.
    """
    from mq.broker.settings import parse_peers
    from raftlog import NodeId, RealDisk, SegmentError, format_address
    from raftlog.backup_restore import restore, survey
    from raftlog.forced_members import MembersRefused
    from raftlog.segment.backup import Backup
    from raftlog.segment.disk import ReadOnlyDisk

    try:
        addresses = {NodeId(node): format_address(address) for node, address in parse_peers(peers).items()}
    except ValueError as error:
        raise CommandFailed(f"--peers: {error}") from error
    data_dirs = _targets(targets, addresses.keys())
    cut_ms = None if until is None else round(parse_time(until).timestamp() * 1000)
    pace = Pace(0, "read and written")
    store = open_store(target, endpoint_url, ReadOnlyDisk())
    try:
        backup = Backup(store)
        try:
            clock = _StoreTimes(cut_ms)
            found = survey(backup, clock.wanted, pace.copied)
            _check_room(backup, found, data_dirs.values())
            end = (0, 0)
            for node_id, data_dir in data_dirs.items():
                unfinished = _begun(data_dir)
                end = restore(
                    backup,
                    found,
                    RealDisk(),
                    str(unfinished),
                    node_id=node_id,
                    addresses=addresses,
                    copied=pace.copied,
                )
                _finish(data_dir)
        finally:
            backup.close()
    except (MembersRefused, SegmentError) as error:
        raise CommandFailed(f"not restored: {error}", EXIT_FAILED) from error
    except OSError as error:
        raise CommandFailed(f"not restored: {error.filename or target}: {error.strerror}", EXIT_FAILED) from error
    newest = time_of(clock.latest_ms)
    if as_json:
        print_json(
            {
                "cluster_id": backup.manifest.cluster_id,
                "restored_index": found.last.index,
                "last_index": end[0],
                "last_term": end[1],
                "newest_message_at": newest,
                "voters": list(addresses),
                "data_dirs": {node: str(data_dir) for node, data_dir in data_dirs.items()},
            }
        )
        return
    for node, data_dir in data_dirs.items():
        print(f"{data_dir}: {node}, entries {backup.manifest.base.index + 1:,} to {found.last.index:,} of the backup")
    print(f"newest message: stored at {newest or 'no time: there is none'}; voters: {' '.join(addresses)}")
    print(f"every replica of the group must end with entry {end[0]:,} of term {end[1]:,}, as these do")


class _StoreTimes:
    """Tracks store times of messages, and detects entries after ``cut_ms``."""

    def __init__(self, cut_ms: int | None) -> None:
        self.latest_ms = 0
        self._cut_ms = cut_ms

    def wanted(self, body: bytes) -> bool:
        from mq.protocol.records import RecordError, latest_store_timestamp

        try:
            stored_ms = latest_store_timestamp(body)
        except RecordError:
            return True  # not a message of ours, so not after the cut
        if self._cut_ms is not None and stored_ms > self._cut_ms:
            return False
        self.latest_ms = max(self.latest_ms, stored_ms)
        return True


def _targets(texts: Sequence[str], voters: Collection[str]) -> dict[NodeId, Path]:
    """Node and data directory of each replica. Raises CommandFailed unless all of them are usable."""
    from mq.broker.settings import RESTORING_DIRECTORY
    from raftlog import NodeId
    from raftlog.net.secret_file import FILE_NAME

    found: dict[NodeId, Path] = {}
    for text in texts:
        node, separator, path = text.partition("=")
        if not separator or not path or not _NODE_ID.fullmatch(node):
            raise CommandFailed(f"{text!r} is not NODE=DATA_DIR such as n0=/data/n0")
        if node not in voters:
            raise CommandFailed(f"{text!r}: {node} is not among the peers {', '.join(voters)}")
        if node in found or Path(path) in found.values():
            raise CommandFailed(f"{text!r}: this node or directory is given twice")
        found[NodeId(node)] = Path(path)
    for data_dir in found.values():
        if data_dir.exists() and not data_dir.is_dir():
            raise CommandFailed(f"{data_dir} is not a directory")
        names = {each.name for each in data_dir.iterdir()} if data_dir.exists() else set()
        if others := names - {FILE_NAME, RESTORING_DIRECTORY, "lost+found"}:
            raise CommandFailed(f"{data_dir} contains data, nothing was restored: {', '.join(sorted(others)[:5])}")
    return found


def _check_room(backup: Backup, found: Survey, data_dirs: Collection[Path]) -> None:
    """Raises CommandFailed if the logs do not fit; the broker needs some more space for derived files."""
    manifest = backup.manifest
    size = manifest.segment_bytes
    wanted = -(-(found.last.pos + found.last.size - manifest.base.pos) // size) * size
    on_device: dict[int, list[Path]] = {}
    for data_dir in data_dirs:
        there = next(parent for parent in (data_dir.absolute(), *data_dir.absolute().parents) if parent.exists())
        on_device.setdefault(there.stat().st_dev, []).append(there)
    for paths in on_device.values():
        if (free := shutil.disk_usage(paths[0]).free) < wanted * len(paths):
            raise CommandFailed(
                f"{len(paths)} logs of {wanted} bytes to restore at {paths[0]}, but only {free} bytes are free"
            )


def _begun(data_dir: Path) -> Path:
    """The directory in which the log is built; remains of an earlier attempt are removed. Raises OSError."""
    from mq.broker.settings import RESTORING_DIRECTORY

    unfinished = data_dir / RESTORING_DIRECTORY
    data_dir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    return unfinished


def _finish(data_dir: Path) -> None:
    """Move the log to its final place, durably. Raises OSError."""
    from mq.broker.settings import LOG_DIRECTORY, RESTORING_DIRECTORY
    from raftlog import RealDisk

    os.rename(data_dir / RESTORING_DIRECTORY, data_dir / LOG_DIRECTORY)
    RealDisk().sync_directory(str(data_dir))
    RealDisk().sync_directory(str(data_dir.absolute().parent))
