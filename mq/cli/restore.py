"""`raftmq restore`: creates the data directories of a new group's replicas from a backup."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mq.cli.backup import EndpointUrl, Pace, Target, open_store
from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, parse_time, print_json
from mq.inspection.formatting import time_of

if TYPE_CHECKING:
    from raftlog import NodeId
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
    from raftlog.backup_restore import restore
    from raftlog.forced_members import MembersInvalid
    from raftlog.segment.backup import Backup
    from raftlog.segment.disk import ReadOnlyDisk
    from raftlog.segment.freed_memory import keep_freed_memory

    keep_freed_memory()
    try:
        addresses = {NodeId(node): format_address(address) for node, address in parse_peers(peers).items()}
    except ValueError as error:
        raise CommandFailed(f"--peers: {error}") from error
    data_dirs = _targets(targets, addresses.keys())
    accept = None if until is None else partial(_stored_until, round(parse_time(until).timestamp() * 1000))
    pace = Pace(0, "read and written")
    store = open_store(target, endpoint_url, ReadOnlyDisk())
    try:
        backup = Backup(store)
        try:
            if until is None:
                _check_room(backup, data_dirs.values())
            with _new_directories(data_dirs.values()) as directories:
                outcome = [
                    restore(
                        backup,
                        RealDisk(),
                        str(directory),
                        node_id=node_id,
                        addresses=addresses,
                        is_wanted=accept,
                        on_copy=pace.on_copy,
                    )
                    for node_id, directory in zip(data_dirs, directories, strict=True)
                ][-1]
                for data_dir in data_dirs.values():
                    _finish(data_dir)
        finally:
            backup.close()
    except (MembersInvalid, SegmentError) as error:
        raise CommandFailed(f"not restored: {error}", EXIT_FAILED) from error
    except OSError as error:
        raise CommandFailed(f"not restored: {error.filename or target}: {error.strerror}", EXIT_FAILED) from error
    newest = time_of(_stored_ms(outcome.newest_body))
    if as_json:
        print_json(
            {
                "cluster_id": backup.manifest.cluster_id,
                "restored_index": outcome.last.index,
                "last_index": outcome.last_index,
                "last_term": outcome.last_term,
                "newest_message_at": newest,
                "voters": list(addresses),
                "data_dirs": {node: str(data_dir) for node, data_dir in data_dirs.items()},
            }
        )
        return
    for node, data_dir in data_dirs.items():
        print(f"{data_dir}: {node}, entries {backup.manifest.base.index + 1:,} to {outcome.last.index:,} of the backup")
    print(f"newest message: stored at {newest or 'no time: there is none'}; voters: {' '.join(addresses)}")
    print(
        f"every replica of the group must end with entry {outcome.last_index:,} of term {outcome.last_term:,}, "
        "as these do"
    )


def _stored_until(cut_ms: int, body: bytes) -> bool:
    """Whether no message of an entry was stored after a time, in ms since 1970."""
    return _stored_ms(body) <= cut_ms


def _stored_ms(body: bytes) -> int:
    """The time at which the latest message of an entry was stored; 0 if the entry has no message of a broker."""
    from mq.protocol.messages.records import RecordError, latest_store_timestamp

    try:
        return latest_store_timestamp(body)
    except RecordError:
        return 0


def _targets(texts: Sequence[str], voters: Collection[str]) -> dict[NodeId, Path]:
    """Node and data directory of each replica. Raises CommandFailed unless all of them are usable."""
    from mq.broker.settings import RESTORING_DIRECTORY
    from raftlog import NodeId
    from raftlog.net.secret_file import FILE_NAME

    targets: dict[NodeId, Path] = {}
    for text in texts:
        node, separator, path = text.partition("=")
        if not separator or not path or not _NODE_ID.fullmatch(node):
            raise CommandFailed(f"{text!r} is not NODE=DATA_DIR such as n0=/data/n0")
        if node not in voters:
            raise CommandFailed(f"{text!r}: {node} is not among the peers {', '.join(voters)}")
        if node in targets or Path(path) in targets.values():
            raise CommandFailed(f"{text!r}: this node or directory is given twice")
        targets[NodeId(node)] = Path(path)
    for data_dir in targets.values():
        if data_dir.exists() and not data_dir.is_dir():
            raise CommandFailed(f"{data_dir} is not a directory")
        names = {each.name for each in data_dir.iterdir()} if data_dir.exists() else set()
        if others := names - {FILE_NAME, RESTORING_DIRECTORY, "lost+found"}:
            raise CommandFailed(f"{data_dir} contains data, nothing was restored: {', '.join(sorted(others)[:5])}")
    return targets


def _check_room(backup: Backup, data_dirs: Collection[Path]) -> None:
    """Raises CommandFailed if the logs do not fit; the broker needs some more space for derived files."""
    manifest = backup.manifest
    size = manifest.segment_bytes
    nbytes = -(-(manifest.end_pos - manifest.base.pos) // size) * size
    on_device: dict[int, list[Path]] = {}
    for data_dir in data_dirs:
        there = next(parent for parent in (data_dir.absolute(), *data_dir.absolute().parents) if parent.exists())
        on_device.setdefault(there.stat().st_dev, []).append(there)
    for paths in on_device.values():
        if (free := shutil.disk_usage(paths[0]).free) < nbytes * len(paths):
            raise CommandFailed(
                f"{len(paths)} logs of {nbytes} bytes to restore at {paths[0]}, but only {free} bytes are free"
            )


@contextmanager
def _new_directories(data_dirs: Collection[Path]) -> Iterator[list[Path]]:
    """The directories in which the logs are built; remains of an earlier attempt are removed. If the block fails, they
    are removed again, and the data directories that did not exist before. Raises OSError.
    """
    from mq.broker.settings import RESTORING_DIRECTORY
    from raftlog import RealDisk

    directories = [data_dir / RESTORING_DIRECTORY for data_dir in data_dirs]
    new_data_dirs = [data_dir for data_dir in data_dirs if not data_dir.exists()]
    try:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
            RealDisk().mkdir(str(directory))
        yield directories
    except BaseException:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
        for data_dir in new_data_dirs:
            with suppress(OSError):
                data_dir.rmdir()
        raise


def _finish(data_dir: Path) -> None:
    """Move the log to its final place, durably. Raises OSError."""
    from mq.broker.settings import LOG_DIRECTORY, RESTORING_DIRECTORY
    from raftlog import RealDisk

    os.rename(data_dir / RESTORING_DIRECTORY, data_dir / LOG_DIRECTORY)
    RealDisk().sync_directory(str(data_dir))
    RealDisk().sync_directory(str(data_dir.absolute().parent))
