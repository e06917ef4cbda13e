"""A process on a simulated machine, which runs the production code unchanged.

It is a `Replica` with its `RaftCore` and its `SegmentLog`; only clock, writer, disk, connections and application are
simulated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from chaos.log_sim.forgery import forge
from chaos.log_sim.history import Entry
from chaos.log_sim.node import DIRECTORY, Node, World
from chaos.log_sim.schedule import Scenario
from chaos.log_sim.writer import SimWriter
from chaos.values import body_of, value_of
from chaos.violation import Violation
from raftlog.bootstrap import configurations, core_for
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.trace import TracedCore
from raftlog.consensus.types import ConfState, EntryKind, NodeId, Refusal, Role, RoleChange
from raftlog.lease_clock import LeaseClock
from raftlog.log_numbers import LogIndex
from raftlog.net import frames as wire
from raftlog.net.frames import Kind, WireError
from raftlog.net.transport import Lane
from raftlog.replica import CommittedEntry, Replica
from raftlog.segment.codec import HEADER
from raftlog.segment.errors import FrameCorrupt, StorageCorrupt
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta import Base
from raftlog.segment.note_names import DAMAGED

CLUSTER_ID = "simulated"
DISK_FULL_RATIO, DISK_PAUSE_RATIO = 0.90, 0.95
DISK_POLL_SECONDS = 1.0
_CHECK_TURNS = 4
FORGED_SHARE = 0.01
"""Share of the frames that are preceded by a forged copy."""


class LogProcess:
    """One start of a node. It opens the log, builds the replica, and is the replica's application and transport.

    Raises:
        SegmentError: the log cannot be opened.
    """

    def __init__(
        self, node: Node, world: World, scenario: Scenario, rng: random.Random, core_class: type[RaftCore]
    ) -> None:
        self.node = node
        self.node_id = node.node_id
        self._world = world
        self._rng = rng
        self._durable_commit = scenario.config.durable_commit
        self._segment_bytes = scenario.segment_bytes
        self.writer = SimWriter(
            disk=node.disk,
            later=lambda seconds, step: world.later(node, seconds, step),
            latency=node.disk_latency,
            clock=node.clock,
            on_done=lambda: self.replica.note_writes(),
            on_send=self._send_for_writer,
            on_failed=lambda error: world.end_process(node, error),
            buggify=world.buggify,
            faults=node.short_writes,
            sync_bytes_max=scenario.limits.sync_bytes_max,
        )
        self.log = SegmentLog.open(
            DIRECTORY,
            cluster_id=CLUSTER_ID,
            node_id=node.node_id,
            segment_bytes=scenario.segment_bytes,
            disk=node.disk,
            tail_bytes_max=scenario.log_tail_bytes_max,
            writer=self.writer,
            acknowledges_unsynced=not self._durable_commit,
            limits=scenario.limits,
        )
        log = self.log
        self._damaged = False
        log.set_damage_handler(self._on_damage)
        initial = ConfState(scenario.nodes if self.node_id in scenario.nodes else ())
        try:
            self.confs = confs = configurations(log, initial)
            self._open_application()
        except StorageCorrupt as damage:
            self.record_damage(damage.physical_offset)
            log.close()
            raise
        self.clock: Callable[[], float] = node.clock
        if scenario.config.lease_reads:
            # The two clocks differ, and the code under test must choose the right one for a lease.
            self.clock = LeaseClock(node.monotonic, node.monotonic, node.clock)
        self.core = core_for(
            log,
            confs,
            node_id=node.node_id,
            config=node.config,
            rng=rng,
            now=self.clock(),
            applied_index=LogIndex(node.checkpoint),
            core_class=core_class,
        )
        self.replica = Replica(
            core=self.core,
            log=log,
            transport=self,
            application=self,
            applied_index=LogIndex(node.checkpoint),
            clock=self.clock,
            wake=lambda: world.later(node, 0.0, lambda: None),
            confs=confs,
            on_conf=self._on_conf,
            on_reset=lambda peer: world.offer_files(self, peer),
            check_body=self.check_body,
        )
        self._waiting_for: NodeId | None = None
        self._waiting_ticket = 0
        self._has_left = False
        self._applied = node.checkpoint
        self._appends: dict[int, int] = {}
        self._led_term = 0
        self._turns = 0
        self._forgeries = random.Random(f"forged frames for {node.node_id}")

    def archive_end(self) -> Base | None:
        """Return the end of the log's archived part, which the leader offers; see `raftlog.node.Hosted`."""
        return None

    def read_archived(self, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]) -> bool:
        """Begin to read archived bytes. Return False without an archive; ``on_read`` gets None if the read fails."""
        return False

    def next_wake(self) -> float:
        """Return the latest simulated time at which the process needs a turn."""
        return self.node.world_time(self.replica.next_deadline() + self.node.clock() - self.clock())

    # -- for other applications ----------------------------------------------------------------------------------------

    def _open_application(self) -> None:
        """Restore how far the application has applied the opened log, and set ``node.checkpoint``."""
        node, world, log = self.node, self._world, self.log
        self._restart_if_replaced()
        if world.buggify("lost-checkpoint"):
            node.checkpoint = max(log.base[0], self._rng.randint(0, node.checkpoint))
        if world.buggify("replay-everything"):
            node.checkpoint = log.base[0]

    def _on_damage(self, damage: StorageCorrupt) -> None:
        """Transfer leadership, as `raftlog.node` does, and end the process a moment later for its repair."""
        if not self._damaged:
            self._damaged = True
            self._world.later(self.node, 0.0, lambda: self.replica.transfer())
            seconds = self._rng.choice((0.001, 0.05, 0.5))
            self._world.later(self.node, seconds, lambda: self._world.end_process(self.node, damage))

    def check_body(self, body: memoryview, position: int) -> None:
        """Accept every body."""

    def on_begin(self) -> None:
        """Start the timers and I/O of a running process."""
        self._world.later(self.node, DISK_POLL_SECONDS, self.watch_disk)
        self.on_start()

    def on_start(self) -> None:
        """Schedule the first work of a running process."""

    def prepare_stop(self) -> None:
        """Prepare for a clean stop of the process."""

    def on_exit(self, *, power_cut: bool) -> None:
        """Handle the end of the process, for whatever reason it ended."""

    def snapshot(self) -> bytes | None:
        """Return the snapshot for a node that starts at the log's base; None while there is none."""
        return b"%d" % self.replica.applied_index

    def _end_turn(self) -> None:
        self.replica.pump()

    def _restart_if_replaced(self) -> None:
        """Start the application from the snapshot that came with fetched files, if they replaced the log."""
        node, base_index = self.node, self.log.base[0]
        if node.checkpoint < base_index:
            snapshot = node.disk.durable(f"{DIRECTORY}/snapshot", 0, 32)
            if not snapshot.isdigit() or int(snapshot) < base_index:
                raise Violation(f"{self.node_id}: the log begins behind {base_index}, but the snapshot is {snapshot!r}")
        if node.checkpoint < base_index or node.replaces_log:
            node.checkpoint = base_index
        node.replaces_log = False

    def _on_conf(self, index: LogIndex, conf: ConfState, removed: frozenset[NodeId]) -> None:
        self.confs = [*[before for before in self.confs if before[0] < index], (index, conf)]

    # -- turns -------------------------------------------------------------------------------------------------

    def receive(self, source: NodeId, data: bytearray, *, garbled: bool) -> bool:
        """Handle a frame from the network. Return False if the bytes are not a frame."""
        if not garbled and self._forgeries.random() < FORGED_SHARE:
            self._expect_refusal(source, bytes(data))
        try:
            frames, nbytes = wire.split_frames(memoryview(data))
            if nbytes != len(data):
                raise WireError(f"a frame of {len(data)} bytes, {nbytes} of which make sense")
            ((kind, payload),) = frames
            self.replica.receive(source, kind, payload)
        except (WireError, FrameCorrupt) as error:
            if not garbled:
                raise Violation(f"{source} sent an unreadable frame to {self.node_id}: {error}") from error
            return False
        finally:
            # The buffer belongs to the connection; code that keeps a view of it will notice.
            data[:] = b"\xdd" * len(data)
        if garbled and not (kind is Kind.APPEND and self._takes_no_entries):
            raise Violation(f"{self.node_id} took a frame of {source} in which a bit was flipped")
        return True

    def _expect_refusal(self, source: NodeId, frame: bytes) -> None:
        """Handle a forged copy of a frame. It must change nothing, so a run is the same with and without it."""
        copy = forge(frame, self._forgeries)
        if copy is None:
            return
        ((kind, payload),), _ = wire.split_frames(memoryview(copy))
        try:
            self.replica.receive(source, kind, payload)
        except (WireError, FrameCorrupt):
            return
        if not (kind is Kind.APPEND and self._takes_no_entries):
            raise Violation(f"{self.node_id} took a forged {kind.name} frame of {source}")

    @property
    def _takes_no_entries(self) -> bool:
        """Whether append requests with entries are dropped unread."""
        unsynced_bytes = self.log.end_pos - self.log.durable_pos
        return self.replica._paused or unsynced_bytes > self.log.limits.unsynced_bytes_max

    def propose(self, values: Sequence[int], nbytes: int) -> None:
        """Append entries for clients."""
        history = self._world.history
        for value in values:
            history.begin_append(value)

            def build(pos: int, value: int = value) -> tuple[bytes, bytes]:
                return body_of(value, nbytes), b"%d" % value if value % 3 else b""

            index = self.replica.append(nbytes, build)
            if isinstance(index, Refusal):
                history.refuse(value)
            else:
                self._appends[index] = value

    def read(self) -> None:
        """Read as a client does: the state at the response must include all that was required at the request."""
        history = self._world.history
        floor = history.read_floor()

        def on_confirm(certain: bool) -> None:
            if certain:
                history.read(self.node_id, floor, self._applied)

        self.replica.read(on_confirm)

    def vouches_for(self, index: int, data: bytes) -> bool:
        """Return whether the log considers exactly this entry durable."""
        log = self.log
        if self.node.flips or not log.base[0] < index <= log.durable_index:
            return False
        chain: int = HEADER.unpack_from(data)[6]
        return log.chain_at(LogIndex(index)) == chain

    def range_for(self, pos: int, nbytes: int) -> bytes | None:
        """Return durable bytes of the log that are known to be committed, for a peer that fetches the whole log.

        None when this node will never have them, empty when it may have them later.
        """
        log = self.log
        if pos < log.base_pos or pos >= log.durable_pos:
            return None
        durable_commit_index = min(self.replica.commit_index, log.durable_index)
        last = log.locate(durable_commit_index) if durable_commit_index > log.base[0] else None
        end = min(pos + nbytes, 0 if last is None else last.pos + last.size)
        return log.pread(pos, end - pos) if end > pos else b""

    def drop_files(self, share: float, floor: int) -> bool:
        """Drop the start of the log, at most up to the entry ``floor``. Return whether anything was dropped."""
        log = self.log
        floor = min(floor, self.replica.applied_index, self.node.checkpoint, log.durable_index - 1)
        files = [s.start for s in log.segments() if s.start > log.base_pos and s.first_index <= floor + 1]
        if not files:
            return False
        # As if half of the deletions came before their time, on a full disk.
        return self.replica.drop_prefix(files[int(share * (len(files) - 1))], b"early" if share > 0.5 else None)

    def record_damage(self, pos: int) -> None:
        """Make the next start verify the whole log, because the byte at ``pos`` is unreadable."""
        self.log.set_note(DAMAGED, b"%d" % pos)
        self.log.submit(self.log.last_ticket + 1)

    def watch_disk(self) -> None:
        """Check the free space of the disk, now and periodically."""
        try:
            free, total = self.node.disk.usage(DIRECTORY)
        except OSError:
            return
        self.replica.disk_usage(free, total, DISK_FULL_RATIO, DISK_PAUSE_RATIO)
        self._world.later(self.node, DISK_POLL_SECONDS, self.watch_disk)

    def pump(self) -> None:
        """End a turn and check the invariants that must hold between turns."""
        replica, core, log = self.replica, self.core, self.log
        self._end_turn()
        self._turns += 1
        if self._turns % _CHECK_TURNS == 0:
            core.check_invariants()
        if core.last_index != log.last_index:
            raise Violation(
                f"{self.node_id}: the log of the core ends at {core.last_index}, but that of the disk at "
                f"{log.last_index}"
            )
        if self._durable_commit and core.durable > log.durable_index:
            raise Violation(
                f"{self.node_id}: the core counts {core.durable} as durable, but the log {log.durable_index}"
            )
        if replica.applied_index != self._applied:
            raise Violation(
                f"{self.node_id}: it has applied {self._applied}, but the replica says {replica.applied_index}"
            )

    def check_durable(self) -> None:
        """Raise `Violation` if the log takes bytes for durable that are in the cache only, after a failed sync."""
        disk, log = self.node.disk, self.log
        if not disk.has_lost:
            return
        for start in (int(name) for name in disk.names(DIRECTORY) if name.isdigit()):
            if log.base_pos <= start < log.durable_pos:
                end = min(self._segment_bytes, log.durable_pos - start)
                if (at := disk.first_undurable(f"{DIRECTORY}/{start:020d}", 0, end)) is not None:
                    raise Violation(
                        f"durability: {self.node_id} counts {log.durable_pos} bytes as durable, "
                        f"but its disk lacks the byte at {start + at}"
                    )

    # -- PeerSender --------------------------------------------------------------------------------------------

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        frame = b"".join(buffers)
        if len(frame) != nbytes:
            raise Violation(f"{self.node_id} announces a frame of {nbytes} bytes and sends {len(frame)}")
        if frame[4] in (Kind.VOTE, Kind.VOTE_RESPONSE):
            self._check_vote(frame)
        if lane is Lane.CONTROL and peer == self._waiting_for:
            self._take_back()
        return self._world.wires.send(self.node_id, peer, lane, frame)

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool:
        """Send as `raftlog.replica.PeerSender`; like `raftlog.net.after_sync.AfterSync`."""
        self._has_left = False
        if self._world.buggify("no-link") or not self.writer.send_after(ticket, -1, frame):
            return False
        self._waiting_for, self._waiting_ticket = peer, ticket
        return True

    def has_left(self) -> bool:
        self._take_back()
        return self._has_left

    def _take_back(self) -> None:
        if self._waiting_for is not None:
            self._waiting_for = None
            self._has_left = self.writer.take_back() > 0

    def _send_for_writer(self, frame: bytes) -> int:
        assert self._waiting_for is not None
        if isinstance(self.core, TracedCore):
            ((_, payload),), _ = wire.split_frames(memoryview(frame))
            self.core.sent_by_writer(
                self._waiting_ticket, wire.decode_appended(payload, self.node_id, self._waiting_for)
            )
        self._world.wires.send(self.node_id, self._waiting_for, Lane.CONTROL, frame)
        return len(frame)

    def _check_vote(self, frame: bytes) -> None:
        ((kind, payload),), _ = wire.split_frames(memoryview(frame))
        vote = wire.decode_cold(kind, payload)
        history = self._world.history
        if kind is Kind.VOTE:
            history.check_vote(self.node_id, vote.term, self.node_id, self.node.hard_state())
        elif vote.granted:
            history.check_vote(self.node_id, vote.term, vote.dst, self.node.hard_state())

    # -- Application -------------------------------------------------------------------------------------------

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        history, log = self._world.history, self.log
        confs = [conf for _, conf in self.confs[-2:]]
        for entry in entries:
            index = entry.index
            if index != self._applied + 1:
                raise Violation(f"{self.node_id} applies {index} after {self._applied}")
            value = value_of(entry.body) if entry.kind == EntryKind.NORMAL else None
            if entry.annotation and entry.annotation != b"%d" % (value or 0):
                raise Violation(f"{self.node_id}: value {value} comes with the annotation {entry.annotation!r}")
            log_entry = Entry(index, entry.term, entry.kind, entry.pos, self._chain_at(index), value)
            history.check_entry(self.node_id, self.replica.core.term, log_entry, partial(self._bytes_of, index), confs)
            self._applied = index
            if (request := self._appends.pop(index, None)) is not None:
                if request != value:
                    raise Violation(f"{self.node_id} acknowledged {request} at {index}, but {value} is committed")
                history.acknowledge(request, index)
        if self._applied <= log.durable_index and self._rng.random() < 0.2:
            self.node.checkpoint = self._applied

    def role_changed(self, change: RoleChange) -> None:
        if change.role is Role.LEADER and change.term > self._led_term:
            self._led_term = change.term
            self._world.history.check_election(self.node_id, change.term, self.log.last_index, self._chain_at)
            self._world.on_election(self.node, change.term)
        if change.role is not Role.LEADER and (
            open_indexes := [i for i in self._appends if i > self.replica.commit_index]
        ):
            raise Violation(f"{self.node_id} leads no more, but the outcome of {open_indexes} is open")

    def outcome_unknown(self, first_index: int) -> None:
        for index in [index for index in self._appends if index >= first_index]:
            del self._appends[index]

    def _chain_at(self, index: int) -> int:
        entry = self.log.entry(LogIndex(index))
        return self.log.chain_at(LogIndex(index)) if entry is None else entry.chain

    def _bytes_of(self, index: int) -> bytes:
        data = self.log.read_entries(LogIndex(index), 1)[1]
        return data[: HEADER.unpack_from(data)[1]]
