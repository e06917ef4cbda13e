"""Fetches the beginning of the log from the leader, on a replica that deleted it early and has room again.

The closed files before the own first one are staged next to the log, see `segment.prefix_install`; then the node starts
a new run, which puts them in front of its log. The application decides when there is room, and for how much.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from raftlog.consensus.types import Beginning, NodeId
from raftlog.net import frames
from raftlog.net.frames import RangeReq, RangeResp
from raftlog.net.received_entries import CheckBody, check_entry
from raftlog.net.transport import Lane, Transport
from raftlog.node_limits import DEFAULT
from raftlog.range_server import ANSWER_SECONDS_MAX, GONE
from raftlog.replica import Replica
from raftlog.segment.disk import Disk
from raftlog.segment.errors import StorageFailed
from raftlog.segment.prefix_install import REFILL_NAME, fits_before
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall, What, decode_manifest, discard
from raftlog.shared_wakeups import sleep_to_step

Log = structlog.stdlib.BoundLogger

REQUESTS_MAX: Final = 4
_ROUNDS_WITHOUT_BYTES_MAX: Final = 10
"""After this number of answers in a row that did not help, the rest is fetched later, perhaps from another leader."""


class PrefixRefill:
    """Fetches deleted entries from the leader, and puts them in front of the log.

    Args:
        directory: of the log.
        room_bytes: how many bytes of older entries to fetch now, 0 for none, below 0 if the disk needs space.
        on_complete: everything was fetched and is put in front of the log at the next opening.
        check_body: see `Replica`.
        look_seconds: see `NodeLimits.refill_look_seconds`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        replica: Replica,
        transport: Transport,
        room_bytes: Callable[[], int],
        on_complete: Callable[[], None],
        log: Log,
        check_body: CheckBody = lambda body, position: None,
        look_seconds: float = DEFAULT.refill_look_seconds,
    ) -> None:
        self._look_seconds = look_seconds
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._replica = replica
        self._transport = transport
        self._room_bytes = room_bytes
        self._on_complete = on_complete
        self._log = log
        self._check_body = check_body
        self._answers_in, self._answers = trio.open_memory_channel[RangeResp](2 * REQUESTS_MAX)
        self._active = False
        self._notified_node: NodeId | None = None

    def on_response(self, response: RangeResp) -> None:
        """Process the answer to a request; answers to requests of others are ignored."""
        if self._active:
            try:
                self._answers_in.send_nowait(response)
            except trio.WouldBlock:
                return

    async def run(self) -> None:
        """Fetch whenever something is missing and there is room, until a fetch is complete.

        Raises:
            StorageFailed: a disk error. A full disk is not one: what was fetched is removed.
        """
        while True:
            await sleep_to_step(self._look_seconds)
            room = self._room_bytes()
            leader = self._leader_with_more() if room > 0 else None
            if leader is None:
                if room > 0:
                    self._tell_of_learner()
                continue
            self._active = True
            try:
                manifest = await self._manifest(leader, room)
                if manifest is not None and await self._pull(manifest):
                    self._on_complete()
                    return
            except StorageFailed as failure:
                if failure.errno != errno.ENOSPC:
                    raise
                await self._give_up(str(failure))
            finally:
                self._active = False

    def _leader_with_more(self) -> NodeId | None:
        """The leader, if its log begins earlier than this one."""
        replica = self._replica
        state, _ = replica.beginning()
        leader, base = replica.core.leader_id, replica.core.leader_base
        if replica.is_leader or leader is None or base is None or state is not Beginning.LATER:
            return None
        return leader if base < replica.log.base[0] else None

    def _tell_of_learner(self) -> None:
        """Log, once for each learner, that an operator has to promote it: this replica leads, and only the learner has
        what is missing.
        """
        core = self._replica.core
        if not self._replica.is_leader or core.successor_with_older_log is not None:
            return
        state, holder = self._replica.beginning()
        if state is Beginning.LATER and holder in core.conf.learners and holder != self._notified_node:
            self._notified_node = holder
            self._log.warning(
                "refill_needs_promotion",
                learner=holder,
                first_index=self._replica.log.first_index,
                reason=f"only {holder} has the entries before this log, and a learner cannot lead: once it has caught "
                f"up, promote it (raftmq group promote {holder}); it then leads, and the others fetch from it",
            )

    async def _manifest(self, leader: NodeId, room: int) -> Manifest | None:
        """The manifest of the leader's log before the first entry of this one; None without a usable answer."""
        await trio.lowlevel.checkpoint()
        log = self._replica.log
        self._ask(leader, RangeReq("prefix", log.base_pos, room))
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            while True:
                response = await self._answers.receive()
                if response.source == "prefix" and response.pos == log.base_pos:
                    return self._usable(leader, response)
        return None

    def _usable(self, leader: NodeId, response: RangeResp) -> Manifest | None:
        if response.refusal is not None:
            return None
        try:
            manifest = decode_manifest(response.data)
        except ValueError as error:
            self._log.warning("refill_misfit", source=leader, reason=str(error))
            return None
        if not fits_before(manifest, self._replica.log.beginning, self._segment_bytes):
            self._log.warning("refill_misfit", source=leader, reason="its files do not end where this log begins")
            return None
        return manifest

    async def _pull(self, manifest: Manifest) -> bool:
        """Fetch the files; returns whether all of them are here and durable."""
        staging = await trio.to_thread.run_sync(
            partial(
                SnapshotInstall,
                self._disk,
                self._directory,
                manifest,
                partial(check_entry, self._check_body),
                name=REFILL_NAME,
                limits=self._replica.log.limits,
            )
        )
        try:
            self._log.info(
                "refill_begun",
                source=self._replica.core.leader_id,
                missing_bytes=staging.missing_bytes,
                from_index=manifest.base.index + 1,
                to_index=manifest.end_index,
            )
            if not await self._fetch(staging):
                return False
            await trio.to_thread.run_sync(staging.finish)
        finally:
            staging.close()
        self._log.info("refill_fetched", from_index=manifest.base.index + 1, to_index=manifest.end_index)
        return True

    async def _fetch(self, staging: SnapshotInstall) -> bool:
        requests: dict[tuple[What, int], float] = {}
        useless = 0
        await trio.lowlevel.checkpoint()
        while not staging.complete:
            leader = self._leader_with_more()
            if leader is None or useless > _ROUNDS_WITHOUT_BYTES_MAX:
                self._log.info("refill_interrupted", missing_bytes=staging.missing_bytes)
                return False
            if self._room_bytes() < 0:
                await self._give_up("the disk fills up again")
                return False
            now = trio.current_time()
            requests = {key: at for key, at in requests.items() if now < at + ANSWER_SECONDS_MAX}
            while len(requests) < REQUESTS_MAX and (request := staging.next_request(requests)) is not None:
                what, pos, nbytes = request
                requests[what, pos] = now
                self._ask(leader, RangeReq(what, pos, nbytes))
            with trio.move_on_after(ANSWER_SECONDS_MAX / 4) as silence:
                response = await self._answers.receive()
            if silence.cancelled_caught:
                useless += 1
                continue
            if response.source != "log":
                continue
            if response.refusal is None:
                requests.pop(("log", response.pos), None)
                if await trio.to_thread.run_sync(staging.accept, "log", response.pos, response.data):
                    useless = 0
                    continue
            elif response.refusal == GONE:
                useless = _ROUNDS_WITHOUT_BYTES_MAX
            useless += 1
            await trio.sleep(ANSWER_SECONDS_MAX / 4)
        return True

    async def _give_up(self, reason: str) -> None:
        """Remove all fetched files: the disk needs the space."""
        self._log.warning("refill_given_up", reason=reason)
        await trio.to_thread.run_sync(discard, self._disk, self._directory, REFILL_NAME)

    def _ask(self, leader: NodeId, request: RangeReq) -> None:
        frame = frames.encode_cold(request)
        self._transport.send(leader, Lane.CONTROL, [frame], len(frame))
        self._replica.wake()
