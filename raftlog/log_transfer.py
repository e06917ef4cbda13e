"""Catch-up by files: a leader offers the files of its log, a peer fetches them and restarts with them.

A peer that needs entries from below the leader's base, or is empty while the leader has many files, is not sent
entries. The leader *offers* its base, its closed files, and a snapshot of its application; the peer *pulls* them at its
own pace next to its current log, across interruptions and changes of leader. Meanwhile it receives heartbeats as usual.
When everything is there, the node restarts in place, and opening the log installs the files.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from raftlog.catch_up_from_archive import ArchivedFiles, OpenArchive
from raftlog.consensus.confchange import decode_conf, encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net import frames
from raftlog.net.frames import RANGE_BYTES_MAX, InstallOffer, RangeReq, RangeResp, WireError
from raftlog.net.received_entries import CheckBody, check_configuration, check_entry
from raftlog.net.transport import Lane, Transport
from raftlog.node_limits import DEFAULT, NodeLimits
from raftlog.range_server import ANSWER_SECONDS_MAX, GONE, NO_SNAPSHOT, RangeRefused
from raftlog.replica import Replica
from raftlog.segment.disk import Disk
from raftlog.segment.errors import StorageFailed
from raftlog.segment.meta import Base
from raftlog.segment.note_names import EARLY, EARLY_ELSEWHERE
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall, What, decode_manifest, discard, encode_manifest
from raftlog.shared_wakeups import sleep_to_step

Log = structlog.stdlib.BoundLogger
Snapshot = Callable[[], tuple[LogIndex, Callable[[], bytes]] | None]

OFFER_SECONDS_MAX: Final = 60.0
"""An unused offer stays for this long; its snapshot is in memory meanwhile."""

REQUESTS_MAX: Final = 4
HEARING_SECONDS: Final = 3.0
"""Seconds for which a copy of a log waits to hear that no other replica has older entries."""

_QUEUED_MAX = 64
_PROGRESS_SECONDS = 5.0


def record_reset(replica: Replica, base: LogIndex, then: Callable[[], None]) -> None:
    """The log will be replaced by one that begins after the entry ``base``. Call ``then`` once the log notes durably
    whether other replicas may have what is missing: the leader may have deleted it early, and the copy is no better.
    The copy may also come from an earlier leader, whose log began later than the present leader's. Call it after
    `hear_beginnings`.
    """
    leader_base = replica.core.leader_base
    is_later = leader_base is not None and leader_base < base
    if base == 0 or EARLY in replica.log.notes or not (replica.core.leader_may_lack_entries or is_later):
        then()
    else:
        replica.remember(EARLY, EARLY_ELSEWHERE, then)


async def hear_beginnings(replica: Replica, source: NodeId | None, base: LogIndex) -> None:
    """Wait until the leader has told where the logs begin, at most HEARING_SECONDS. The log of ``source`` was copied;
    it begins after the entry ``base``.

    A new leader knows only after a moment where the logs of the others begin. One that deletes files tells so with its
    next heartbeat: until then its copy begins later than what it told.
    """
    core = replica.core

    def has_deleted_more() -> bool:
        return core.leader_id == source and core.leader_base is not None and core.leader_base < base

    await trio.lowlevel.checkpoint()
    with trio.move_on_after(HEARING_SECONDS):
        while core.leader_may_lack_entries or has_deleted_more():  # noqa: ASYNC110 - heartbeats tell it
            await trio.sleep(HEARING_SECONDS / 20)


@dataclass(slots=True)
class _Offer:
    manifest: Manifest
    snapshot: bytes
    used_at: float


class Offers:
    """Offers a leader's files to peers: makes offers, and keeps the snapshot of the newest one.

    Args:
        snapshot, archive_end, encode_for_copies: the application's, see `raftlog.node.Hosted`.
    """

    def __init__(
        self,
        replica: Replica,
        transport: Transport,
        snapshot: Snapshot,
        log: Log,
        archive_end: Callable[[], Base | None] = lambda: None,
        encode_for_copies: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._archive_end = archive_end
        self._note_for_copies = encode_for_copies
        self._replica = replica
        self._transport = transport
        self._snapshot = snapshot
        self._log = log
        self._offer: _Offer | None = None
        self._peers_in, self._peers = trio.open_memory_channel[NodeId](_QUEUED_MAX)

    def offer(self, peer: NodeId) -> None:
        """Make ``peer`` an offer; called repeatedly while it needs one."""
        if self._replica.log.base[0] == 0 and self._manifest().end_index == 0:
            # Committing may depend on this very peer.
            self._replica.decline_install(peer)
            return
        try:
            self._peers_in.send_nowait(peer)
        except trio.WouldBlock:
            return

    def read_snapshot(self, request: RangeReq) -> bytes:
        """Bytes of the newest snapshot. Raises `RangeRefused` if another one is requested."""
        offer = self._offer
        if offer is None or offer.manifest.snapshot_crc != request.crc:
            raise RangeRefused(NO_SNAPSHOT)
        offer.used_at = trio.current_time()
        return offer.snapshot[request.pos : request.pos + min(request.nbytes, RANGE_BYTES_MAX)]

    async def run(self) -> None:
        """Send offers until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget)
            async for peer in self._peers:
                if (offer := await self._current()) is None:
                    continue
                offer.used_at = trio.current_time()
                value = InstallOffer(self._replica.core.term, encode_manifest(offer.manifest))
                frame = frames.encode_cold(value)
                self._transport.send(peer, Lane.CONTROL, [frame], len(frame))
                self._replica.wake()

    async def _forget(self) -> None:
        while True:
            await sleep_to_step(OFFER_SECONDS_MAX / 4)
            if self._offer is not None and trio.current_time() > self._offer.used_at + OFFER_SECONDS_MAX:
                self._offer = None

    async def _current(self) -> _Offer | None:
        """The current offer, if everything in it still exists; else a new one."""
        await trio.lowlevel.checkpoint()
        if self._offer is not None and self._offer.manifest.base.pos >= self._replica.log.base_pos:
            return self._offer
        replica, log = self._replica, self._replica.log
        snapshot = self._snapshot() if replica.applied_index >= max(1, log.base[0]) else None
        if snapshot is None and log.base[0] > 0:
            return None  # an incomplete log is useless for the peer
        manifest = self._manifest()
        index, data = 0, b""
        if snapshot is not None:
            index, encode = snapshot
            data = await trio.to_thread.run_sync(encode)
            manifest = msgspec.structs.replace(manifest, snapshot_bytes=len(data), snapshot_crc=zlib.crc32(data))
        self._offer = _Offer(manifest, data, trio.current_time())
        self._log.info(
            "install_offered",
            base=manifest.base.index,
            last=manifest.end_index,
            snapshot=index,
            snapshot_bytes=len(data),
        )
        return self._offer

    def _manifest(self) -> Manifest:
        replica = self._replica
        conf = encode_conf(replica.core.conf_at(replica.log.base[0]))
        manifest = replica.log.manifest(replica.commit_index, conf=conf)
        return msgspec.structs.replace(manifest, archived=self._archive_end(), note=self._note_for_copies())


class Puller:
    """Fetches a log from another replica, to replace the local one.

    Args:
        directory: of the log.
        on_complete: everything was fetched and will replace the log at the next opening.
        initial: the initial configuration of the group, as far as this node knows.
        check_body: see `Replica`.
        limits: those of the node.
        open_archive: see `raftlog.node.Hosted`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        transport: Transport,
        replica: Replica,
        on_complete: Callable[[], None],
        log: Log,
        initial: ConfState,
        check_body: CheckBody = lambda body, position: None,
        limits: NodeLimits = DEFAULT,
        open_archive: OpenArchive | None = None,
    ) -> None:
        self._open_archive = open_archive
        self._limits = limits
        self._check_body = check_body
        self._initial = encode_conf(initial)
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._transport = transport
        self._replica = replica
        self._on_complete = on_complete
        self._log = log
        self._source: NodeId | None = None
        self._is_gone = False
        self._next: Manifest | None = None
        self._offer_event = trio.Event()
        self._answers_in, self._answers = trio.open_memory_channel[RangeResp](2 * REQUESTS_MAX)

    def on_offer(self, source: NodeId, offer: InstallOffer) -> None:
        """Accept an offer if there is none yet, if it comes from another leader, or if the old one is void.

        Raises:
            WireError: it cannot be decoded.
        """
        try:
            manifest = decode_manifest(offer.manifest)
            if manifest.conf != self._initial:  # not made by a change, and possibly longer than those
                check_configuration(decode_conf(manifest.conf))
        except ValueError as error:
            raise WireError(str(error)) from error
        if manifest.segment_bytes != self._segment_bytes:
            raise WireError(
                f"the leader offers files of {manifest.segment_bytes} bytes, and this replica has files of "
                f"{self._segment_bytes}"
            )
        if manifest.last.term > offer.term:
            raise WireError(f"the leader of term {offer.term} offers a log that ends in term {manifest.last.term}")
        if manifest.end_index == 0:
            return  # it would change nothing, and be offered again
        if source != self._source or self._is_gone:
            self._source, self._is_gone, self._next = source, False, manifest
            self._offer_event.set()

    def on_response(self, source: NodeId, response: RangeResp) -> None:
        """Process the answer to a request."""
        if source == self._source:
            try:
                self._answers_in.send_nowait(response)
            except trio.WouldBlock:
                return

    async def run(self) -> None:
        """Fetch the offered files, then return.

        Raises:
            StorageFailed: a disk error. A full disk is not one: it waits for room.
        """
        while True:
            await self._offer_event.wait()
            self._offer_event = trio.Event()
            manifest, self._next = self._next, None
            assert manifest is not None, "an offer without a manifest"
            try:
                if await self._pull(manifest):
                    self._on_complete()
                    return
            except StorageFailed as failure:
                if failure.errno != errno.ENOSPC:
                    raise
                # What was written is unreliable, and takes up needed room.
                await trio.to_thread.run_sync(discard, self._disk, self._directory)
                await self._wait_for_room(str(failure))

    async def _pull(self, manifest: Manifest) -> bool:
        """Fetch the offered files; returns whether all of them are here and durable."""
        source, base = self._source, manifest.base.index
        staging = await trio.to_thread.run_sync(
            partial(
                SnapshotInstall,
                self._disk,
                self._directory,
                manifest,
                partial(check_entry, self._check_body),
                limits=self._replica.log.limits,
            )
        )
        try:
            free, _ = await trio.to_thread.run_sync(self._disk.usage, self._directory)
            if free < staging.missing_bytes:
                await self._wait_for_room(f"{staging.missing_bytes} bytes are missing, only {free} are free")
                return False
            self._log.info("install_begun", source=self._source, missing_bytes=staging.missing_bytes)
            await self._fetch(staging)
            if staging.complete:
                await hear_beginnings(self._replica, source, base)
                reset = trio.Event()
                record_reset(self._replica, base, reset.set)
                await reset.wait()
                await trio.to_thread.run_sync(staging.finish)
            return staging.complete
        finally:
            staging.close()

    async def _wait_for_room(self, reason: str) -> None:
        self._log.warning("install_waits", source=self._source, reason=reason)
        await trio.sleep(self._limits.room_seconds)
        self._is_gone = True  # so that a repeated offer is accepted

    async def _fetch(self, staging: SnapshotInstall) -> None:
        """Fetch until everything is here, or another offer arrived: archived files from the archive, if it answers."""
        request, archive_end = staging.next_request(), staging.manifest.archived
        if self._open_archive is None or archive_end is None or request is None or request[0] != "log":
            await self._fetch_from(staging, None)
            return
        archive = ArchivedFiles(self._open_archive, archive_end, self._log, self._limits)
        failure: StorageFailed | None = None
        async with trio.open_nursery() as nursery:
            if request[1] < archive_end.pos:
                nursery.start_soon(archive.open, request[1])
                with trio.move_on_after(self._limits.archive_open_seconds):
                    await archive.first_read.wait()
            try:
                await self._fetch_from(staging, archive)
            except StorageFailed as error:
                failure = error  # not raised here, where it would be wrapped
            nursery.cancel_scope.cancel()
        archive.close()
        self._log.info("install_fetched", source=self._source, archived_bytes=archive.nbytes)
        if failure is not None:
            raise failure

    async def _fetch_from(self, staging: SnapshotInstall, archive: ArchivedFiles | None) -> None:
        await trio.lowlevel.checkpoint()
        requests: dict[tuple[What, int], float] = {}
        logged_at = trio.current_time()
        while not staging.complete and self._next is None:
            now = trio.current_time()
            requests = {key: at for key, at in requests.items() if now < at + ANSWER_SECONDS_MAX}
            first = staging.next_request()
            if archive is not None and first is not None and first[0] == "log" and archive.wants(first[1]):
                await archive.fetch(staging, lambda: self._next is not None)
                continue
            while len(requests) < REQUESTS_MAX and (request := staging.next_request(requests)) is not None:
                what, pos, nbytes = request
                requests[what, pos] = now
                self._ask(RangeReq(what, pos, nbytes, staging.manifest.snapshot_crc))
            if now > logged_at + _PROGRESS_SECONDS:
                logged_at = now
                self._log.info("install_progress", source=self._source, missing_bytes=staging.missing_bytes)
            with trio.move_on_after(ANSWER_SECONDS_MAX / 4) as silence:
                response = await self._answers.receive()
            if silence.cancelled_caught:
                continue
            if response.source == "prefix":
                continue
            what, pos = response.source, response.pos
            if response.refusal is None:
                requests.pop((what, pos), None)
                if not await trio.to_thread.run_sync(staging.accept, what, pos, response.data):
                    self._log.warning("install_rejected", source=self._source, what=what, pos=pos)
                    await trio.sleep(ANSWER_SECONDS_MAX / 4)
            elif response.refusal in (GONE, NO_SNAPSHOT):
                # The source will make another offer.
                self._is_gone = True

    def _ask(self, request: RangeReq) -> None:
        if self._source is not None:
            frame = frames.encode_cold(request)
            self._transport.send(self._source, Lane.CONTROL, [frame], len(frame))
            self._replica.wake()
