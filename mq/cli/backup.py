"""`raftmq backup`: copies the log of a running replica into a directory or a bucket, and verifies such copies."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from typer.core import TyperGroup

from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.inspection.formatting import time_of
from raftlog.segment.copy_rate import CopyRate

if TYPE_CHECKING:
    from raftlog.segment.backup import BackupTarget
    from raftlog.segment.backup_layouts import Snapshot
    from raftlog.segment.backup_manifest import BackupManifest
    from raftlog.segment.backup_store import BackupStore
    from raftlog.segment.disk import Disk
    from raftlog.segment.running_log import RunningLog

MIB = 1024 * 1024
ASK_SECONDS = 5.0
SNAPSHOT_SECONDS = 15.0
"""Time to wait for a checkpoint that the vote file does not show as committed yet."""
PROGRESS_SECONDS = 10.0
NICE = 10
"""The niceness, as in the command nice."""

EXIT_LEADS = 3
"""Nothing was copied, since the replica leads: not a failure for a timer that runs on every replica."""


class _TakeByDefault(TyperGroup):
    """``raftmq backup DIR`` is ``raftmq backup take DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["take", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help="Back up the log of a replica, and verify backups.", no_args_is_help=True, cls=_TakeByDefault)

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="Where the backup is: a directory, or s3://BUCKET/PREFIX.")
]
EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        metavar="URL",
        help="Address of the object storage that has the bucket; default: AWS_ENDPOINT_URL, or Amazon S3.",
    ),
]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(target: str, endpoint_url: str | None, disk: Disk) -> BackupStore:
    """Open the store of a backup: a directory or a bucket, as the form of its name says.

    Raises:
        CommandFailed: it is unusable; exit code 2.
    """
    from raftlog import SegmentError
    from raftlog.segment.backup_store import DirectoryStore
    from raftlog.segment.s3_storage import SCHEME, open_s3

    if target.startswith(SCHEME):
        try:
            return open_s3(target, endpoint_url)
        except SegmentError as error:
            raise CommandFailed(str(error)) from error
    if url := _URL.match(target):
        raise CommandFailed(f"{url[0]} is not supported: a backup is in a directory, or at s3://BUCKET/PREFIX")
    if endpoint_url is not None:
        raise CommandFailed(f"--endpoint-url belongs to s3://BUCKET/PREFIX, and {target} is a directory")
    return DirectoryStore(disk, target)


@app.command("take")
def take(
    target: Target,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Data directory of a replica on this machine; it may be running.")
    ],
    rate: Annotated[float, typer.Option(min=0, help="Maximum MiB per second; 0 means no limit.", metavar="MIB")] = 50.0,
    leader: Annotated[
        bool, typer.Option("--leader", help="Take the backup even if this replica is the leader.")
    ] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Copy new committed entries to the backup. It copies those of a replica to TARGET; the first time, all.

    It asks the name servers whether the replica is the leader. If so, it copies nothing and exits with 3; if they do
    not answer, it copies. If it fails, the previous backup stays intact.
    """
    from mq.broker.settings import LOG_DIRECTORY
    from raftlog import RealDisk, SegmentError
    from raftlog.forced_members import configuration_at_base
    from raftlog.segment.backup import BackupTarget
    from raftlog.segment.disk import ReadOnlyDisk
    from raftlog.segment.running_log import RunningLog

    store = open_store(target, endpoint_url, RealDisk())
    yield_processors()
    try:
        source = RunningLog(ReadOnlyDisk(), str(data_dir / LOG_DIRECTORY))
        if not leader and _leads(source, namesrv):
            raise CommandFailed(
                f"{source.state.node_id} leads its group, nothing was copied: take the backup from another replica, "
                "or pass --leader",
                EXIT_LEADS,
            )
        backup = BackupTarget(store)
    except SegmentError as error:
        raise CommandFailed(str(error)) from error
    before = backup.manifest
    if before is None:
        print(f"raftmq: there is no backup in {target}: starting a new one", file=sys.stderr)
    try:
        snapshot = _first_snapshot(source, str(data_dir)) if before is None else None
        _check_room(source, backup)
        pace = Pace(rate * MIB)
        manifest = backup.extend(
            source,
            conf=configuration_at_base(source.state),
            snapshot=snapshot,
            now_ms=time.time_ns() // 1_000_000,
            on_copy=pace.on_copy,
        )
    except (SegmentError, OSError) as error:
        raise CommandFailed(f"{error}. {_what_remains(target, before, store)}", EXIT_FAILED) from error
    finally:
        source.close()
        backup.close()
    if backup.not_tidied is not None:
        print(f"raftmq: the backup is complete; old objects remain: {backup.not_tidied}", file=sys.stderr)
    new_entries = manifest.last.index - (manifest.base.index if before is None else before.last.index)
    if as_json:
        counts = {"is_new": before is None, "new_entries": new_entries, "copied_bytes": pace.nbytes}
        print_json(_summary(target, manifest) | counts)
        return
    action = "started a new backup" if before is None else "continued the backup"
    print(f"{target}: {action}: {new_entries:,} new entries, {decimal(pace.nbytes)} copied; {_in_words(manifest)}")


@app.command("verify")
def verify(target: Target, as_json: Json = False, endpoint_url: EndpointUrl = None) -> None:
    """Read the whole backup and check every entry. Exit code 0: it is intact. 1: it is damaged. 2: there is none."""
    from raftlog import SegmentError
    from raftlog.segment.backup import Backup
    from raftlog.segment.backup_store import BackupDamaged
    from raftlog.segment.disk import ReadOnlyDisk

    store = open_store(target, endpoint_url, ReadOnlyDisk())
    try:
        backup = Backup(store)
        try:
            for _ in backup.runs():
                pass
            backup.snapshot()
        finally:
            backup.close()
    except BackupDamaged as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except SegmentError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print_json(_summary(target, backup.manifest) | {"intact": True})
        return
    print(f"{target}: intact; {_in_words(backup.manifest)}")


class Pace:
    """Limits the rate of copying (`CopyRate`), and prints the progress from time to time."""

    def __init__(
        self,
        bytes_per_second: float,
        verb: str = "copied",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.nbytes = 0
        self._verb = verb
        self._clock = clock
        self._told_at = clock()
        self._rate = CopyRate(bytes_per_second, clock=clock, sleep=sleep)

    def on_copy(self, nbytes: int) -> None:
        """Count `nbytes` copied bytes. Sleeps if the copy is ahead of its rate."""
        self.nbytes += nbytes
        now = self._clock()
        if now > self._told_at + PROGRESS_SECONDS:
            self._told_at = now
            print(f"{decimal(self.nbytes)} {self._verb}", file=sys.stderr)
        self._rate.throttle(nbytes)


def yield_processors() -> None:
    """Lower this process's priority, so that other programs get the processors first."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def _leads(source: RunningLog, namesrv: str) -> bool:
    """Whether the replica leads its group, according to the name servers."""
    import trio

    from mq.broker.settings import derived_identity
    from mq.client.errors import ClientError
    from mq.inspection.cluster import GroupStatus, ask_cluster

    async def ask() -> list[GroupStatus] | None:
        with trio.move_on_after(ASK_SECONDS):
            return await ask_cluster(namesrv)
        return None

    try:
        groups = run_trio(ask)
    except (ClientError, ValueError):
        groups = None
    state = source.state
    for group in groups or ():
        if derived_identity(group.cluster, group.group) == state.cluster_id and group.leader is not None:
            return group.leader == state.node_id
    print(
        f"raftmq: {namesrv} does not say whether {state.node_id} is the leader; taking the backup anyway",
        file=sys.stderr,
    )
    return False


def _first_snapshot(source: RunningLog, data_dir: str) -> Snapshot | None:
    """The snapshot that a log without its beginning needs; waits until there is one that is known to be committed."""
    from mq.store.backup_checkpoint import snapshot_between

    until = time.monotonic() + SNAPSHOT_SECONDS
    while True:
        state = source.refresh()
        base = state.starts_at.index
        if base == 0:
            return None
        if (snapshot := snapshot_between(data_dir, base, state.commit_hint)) is not None or time.monotonic() > until:
            return snapshot
        time.sleep(0.2)


def _check_room(source: RunningLog, target: BackupTarget) -> None:
    state, manifest = source.state, target.manifest
    begin = state.starts_at.pos if manifest is None else manifest.end_pos
    nbytes, free = state.durable_pos - begin, target.free_bytes()
    if free is not None and nbytes > free:
        raise CommandFailed(
            f"{target.name}: {nbytes} bytes to copy, but only {free} bytes are free. "
            f"{_what_remains(target.name, manifest)}",
            EXIT_FAILED,
        )


def _what_remains(target: str, before: BackupManifest | None, store: BackupStore | None = None) -> str:
    """The state of the backup after a failed run, as a sentence. With a ``store``, looks whether it is still there."""
    from raftlog import SegmentError

    if before is None:
        return f"There is no backup in {target} yet"
    try:
        is_gone = store is not None and store.load_manifest() is None
    except SegmentError:
        return f"This run has not changed the backup in {target}, which cannot be read now: {_in_words(before)}"
    if is_gone:
        return f"The backup that was in {target} is no longer there: is the target mounted?"
    return f"The backup in {target} is unchanged: {_in_words(before)}"


def _in_words(manifest: BackupManifest) -> str:
    return (
        f"entries {manifest.base.index + 1:,} to {manifest.last.index:,}, "
        f"{decimal(manifest.end_pos - manifest.base.pos)}, as {manifest.node_id} had them at "
        f"{time_of(manifest.taken_at_ms)}"
    )


def _summary(target: str, manifest: BackupManifest) -> dict[str, object]:
    return {
        "directory": target,
        "cluster_id": manifest.cluster_id,
        "node": manifest.node_id,
        "first_index": manifest.base.index + 1,
        "last_index": manifest.last.index,
        "last_term": manifest.last.term,
        "begins_at": manifest.base.pos,
        "ends_at": manifest.end_pos,
        "snapshot_index": manifest.snapshot_index or None,
        "taken_at": time_of(manifest.taken_at_ms),
    }
