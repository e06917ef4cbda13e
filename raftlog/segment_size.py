"""The length of a log's files (``segment_bytes``) if it is not configured: from the directory, or from the group.

All replicas of a group must have files of the same length, for ever. A directory stores it. A joining node without a
directory waits for a call from a member of the group, usually a leader, whose hello contains its ``segment_bytes``. The
node answers that it should call again, and opens its directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
import trio

from raftlog.net.admission import Admission, Identity, format_address
from raftlog.net.frames import Hello
from raftlog.net.reactor import Reactor
from raftlog.net.transport import NOT_RECORDED, Transport
from raftlog.node import open_secret
from raftlog.node_settings import NodeSettings
from raftlog.segment.directory import SEGMENT_BYTES_MIN
from raftlog.segment.disk import Disk, RealDisk
from raftlog.segment.errors import DirectoryUnusable
from raftlog.segment.meta import FILE_NAME, newest_state, read_slots

Log = structlog.stdlib.BoundLogger

SEGMENT_BYTES_MAX: Final = 2**40
"""The largest value accepted from a peer; a larger file fits few disks."""


def stored_segment_bytes(directory: str, disk: Disk | None = None) -> int | None:
    """The segment size of the log in ``directory``, in bytes; None without a log. Nothing is written.

    Raises:
        DirectoryUnusable: it cannot be read.
        FormatTooNew: a newer version of the software wrote it.
    """
    disk = disk or RealDisk()
    try:
        descriptor = disk.open(os.path.join(directory, FILE_NAME))
        try:
            slots = b"".join(read_slots(disk, descriptor))
        finally:
            disk.close(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DirectoryUnusable(directory, error.strerror or str(error)) from error
    state = newest_state(slots, os.path.join(directory, FILE_NAME))
    return None if state is None else state.segment_bytes


async def group_segment_bytes(
    settings: NodeSettings, *, log: Log, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> int:
    """Wait until a member of the group connects to this node, which was added to the group, and return its segment
    size.

    ``settings.segment_bytes`` is not used. The directory of the log is not touched. ``task_status`` is started when the
    node listens.

    Raises:
        SecretMissing, SecretUnusable: there is no usable secret of the group.
        ListenRefused: the address is not available.
    """
    secrets = open_secret(settings, log)
    sizes: list[tuple[str, int]] = []
    call = trio.Event()

    def on_called(source: str, segment_bytes: int) -> None:
        sizes.append((source, segment_bytes))
        call.set()

    with contextlib.ExitStack() as undo:
        reactor = Reactor()
        undo.callback(reactor.close)
        transport = Transport(
            reactor=reactor,
            admission=_JoiningAdmission(settings.identity, on_called),
            secrets=secrets,
            incarnation="",
            listen=settings.listen,
            on_frame=lambda source, kind, payload: None,  # no peer is admitted
            on_peer_gone=lambda peer: None,
            log=log,
            tls=settings.tls,
        )
        undo.callback(transport.close)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            nursery.start_soon(transport.run)
            task_status.started()
            while not call.is_set():
                log.info(
                    "group_awaited",
                    listen=format_address(settings.listen),
                    reason="segment_bytes is taken from the first member of the group that connects to this node: "
                    "add the node to the group",
                )
                with trio.move_on_after(settings.limits.remind_seconds):
                    await call.wait()
            nursery.cancel_scope.cancel()
    source, segment_bytes = sizes[0]
    log.info("segment_bytes_adopted", segment_bytes=segment_bytes, source=source)
    return segment_bytes


class _JoiningAdmission(Admission):
    """Refuses all peers. ``on_called`` gets node id and ``segment_bytes`` of each member it would have admitted."""

    def __init__(self, identity: Identity, on_called: Callable[[str, int], None]) -> None:
        super().__init__(identity, {}, lambda stores: None)
        self._on_called = on_called

    def why_not(self, hello: Hello) -> str | None:
        same_size = replace(self.identity, segment_bytes=hello.segment_bytes)
        if (refusal := Admission(same_size, {}, lambda stores: None).why_not(hello)) is not None:
            return refusal
        if not SEGMENT_BYTES_MIN <= hello.segment_bytes <= SEGMENT_BYTES_MAX:
            return (
                f"segments of {hello.segment_bytes} bytes, "
                f"{SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} can be taken from a group"
            )
        self._on_called(hello.source, hello.segment_bytes)
        return NOT_RECORDED
