"""One broker: applies the entries of its replica's log, and serves the connections of its clients.

`Broker` is synchronous: the reactor calls it for input and at the end of each turn, timers call it periodically. The
services for client requests are in `mq.broker.services`, the process in `mq.broker.server`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence

from mq.broker.base.counters import TrafficCounters
from mq.broker.base.name_server_registration import Registration
from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.base.steady_wall_clock import local_day
from mq.broker.client_connections import ClientConnections
from mq.broker.context import Environment, broker_context
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.connection import ClientConnection
from mq.broker.net.heartbeat_limits import HeartbeatLimits
from mq.broker.net.linearizable_reads import LinearizableReads
from mq.broker.net.service import Task
from mq.broker.services import Services
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import Command, PutReplica, decode_command, encode_command
from mq.broker.state.format_level import RaiseLevel
from mq.broker.state.metadata import Metadata, as_registered
from mq.broker.state.table import CommandUnknown
from mq.broker.state.topic_deletion import queue_effects
from mq.broker.state.topic_rules import missing_system_topics
from mq.monitoring.error_answers import ERROR_ANSWERS
from mq.monitoring.event_loop_lag import EventLoopLag
from mq.protocol.broker_ids import LEADER_ID, broker_id_of
from mq.protocol.messages.records import RecordError
from mq.protocol.names import NameRefused
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.store.annotation import COMMANDS_START, split_annotation, split_commands
from mq.store.checkpoint import Checkpoint, Checkpointer, PendingCheckpoint, encode_checkpoint
from mq.store.dispatch import scan_runs
from mq.store.errors import AnnotationDamaged, RunInvalid
from mq.store.opening import QueueCatchUp
from mq.store.queue_store import QueueStore
from mq.store.sequenced import SequencedRun, runs_of_records, scan_sequenced
from raftlog import (
    CommittedEntry,
    EntryKind,
    EntryUnusable,
    Replica,
    Role,
    RoleChange,
    decode_conf,
)
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.segment import HEADER_BYTES

_EXPIRE_CLIENT_REQUESTS_SECONDS = 0.1
_STALLED_CHECK_SECONDS = 1.0
_TRY_AGAIN_SECONDS = 0.02

_UNUSABLE = (RecordError, CommandUnknown, RunInvalid, NameRefused, UnicodeDecodeError)
"""Errors of records that no correct leader writes."""


class Broker:
    """Applies the replicated log, and serves clients, in one broker process.

    Args:
        environment: of the process.
        metadata, store: as loaded from the checkpoint; the replica applies every later entry.
        limits: of everything but the metadata, which has its own.
        catch_up: set if the metadata comes from a snapshot and the queues have yet to catch up with it.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        environment: Environment,
        metadata: Metadata,
        store: QueueStore,
        catch_up: QueueCatchUp | None,
        checkpointer: Checkpointer,
        limits: BrokerLimits = DEFAULT,
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._environment = environment
        self._reactor = environment.reactor
        self._metadata = metadata
        self._store = store
        self._catch_up = catch_up
        self._checkpointer = checkpointer
        self._address = settings.advertise or settings.listen
        self._clock = environment.clock
        self._flushed_at = self._clock()
        self._on_registration_changed = environment.on_registration_changed
        self._log = environment.log
        self._limited_log = RateLimitedLog(environment.log, environment.wall_clock_ms)
        self._lateness = EventLoopLag()
        self._elections = 0
        self.connections = ClientConnections(
            settings,
            environment,
            client_requests_max=limits.net.client_requests_max,
            on_closed=self._connection_closed,
        )
        of_clients = HeartbeatLimits(expiry_seconds=settings.client_expiry_seconds)
        self._clients: ClientRegistry[ClientConnection] = ClientRegistry(of_clients)
        self._applied_index = NO_INDEX
        self._led_term = 0
        self._last_checkpoint: PendingCheckpoint | None = None

    def attach(self, replica: Replica) -> None:
        """Set the replica whose log this broker applies. Call it before anything else."""
        self._replica = replica
        self._reads = LinearizableReads(replica.read, self._clock, self._limits.net.reads_waiting_max)
        self._applied_index = replica.applied_index
        self._environment.set_level(self._metadata.format_level.level)
        context = broker_context(
            self._settings,
            self._environment,
            self._limits,
            replica=replica,
            metadata=self._metadata,
            store=self._store,
            clients=self._clients,
            reads=self._reads,
            traffic=TrafficCounters(
                round(1000 * self._clock()),
                local_day(self._environment.wall_clock_ms()),
                self._limits.upkeep.traffic_series_max,
            ),
            applied_index=lambda: self._applied_index,
            floor_pos=lambda: LOG_BEGIN if self._catch_up is not None else self._checkpointer.floor_pos,
            is_filling=lambda: self._catch_up is not None,
            refilled_pos=lambda: self._checkpointer.refilled_pos,
            counters=self._counters,
        )
        self.context = context
        self.appender = context.appender
        self.replica_address = context.replica_address
        self.queue_tails = context.queue_tails
        self.slow_responses = context.slow_responses
        self.services = Services(context)

    # -- clients -----------------------------------------------------------------------------------------------------

    def accept(self, sock: socket.socket) -> None:
        """Serve a new connection, or close it if there are too many."""
        self.connections.accept(sock, self.services.requests)

    def close_connections(self) -> None:
        """Close every client connection."""
        self.connections.close_all()
        self.services.on_stop()  # only now: a reply without its client is sent to other replicas

    def confirm(self, on_known: Callable[[bool], None]) -> None:
        """Call ``on_known`` with whether this replica has applied all committed entries, as a leader has to confirm."""
        self._reads.read(on_known)

    def wait_for_transfer(self) -> bool:
        """Request a leadership transfer if possible, and return whether to wait for it. Call this until it is False."""
        core = self._replica.core
        if not self._replica.is_leader:
            # The new leader is known from its first message on; then clients can find it.
            return core.leader_id is None and self._led_term > 0 and core.conf.voters != (core.node_id,)
        if core.conf.voters == (core.node_id,):
            return False
        self._replica.transfer()
        return True

    def has_unsent_replies(self) -> bool:
        """Return whether responses, or requests to the leader, wait to be sent."""
        return self.services.has_unsent_replies() or self.connections.has_unsent_replies()

    def _connection_closed(self, connection: ClientConnection) -> None:
        self.services.connection_closed(connection)

    # -- the replicated log ------------------------------------------------------------------------------------------

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply committed entries to queues and metadata, then answer senders and wake waiting consumers."""
        for entry in entries:
            # Otherwise queues and metadata lack the entries in between, and every later checkpoint as well.
            assert entry.index == self._applied_index + 1, f"entry {entry.index} is applied after {self._applied_index}"
            if entry.kind == EntryKind.NORMAL:
                try:
                    self._dispatch(entry)
                except _UNUSABLE as error:
                    raise EntryUnusable(entry.index, entry.term, entry.pos, str(error)) from error
            elif entry.kind == EntryKind.NOOP and self._replica.is_leader and entry.term == self._replica.core.term:
                self._lead(entry.term)
            elif entry.kind == EntryKind.CONFIG:
                self.services.members_changed(entry.index, decode_conf(entry.body), self.connections)
            self._applied_index = entry.index
            if self._catch_up is not None and entry.index == self._catch_up.until_index:
                try:
                    self._catch_up.add_ends(self._store)
                except RunInvalid as error:
                    raise EntryUnusable(entry.index, entry.term, entry.pos, str(error)) from error
                self._catch_up = None
        self.appender.on_commit(self._applied_index)
        if self._store.new_entries:
            self.services.on_new_messages(self._store.take_new_entries())

    def role_changed(self, change: RoleChange) -> None:
        """Stop leading if another replica leads. A new leader waits until its first entry is committed."""
        fields: dict[str, object] = {}
        self._elections += change.role is Role.LEADER
        if (cause := change.cause) is not None:
            about = {"cause_node": cause.node, "cause_ms": cause.milliseconds}
            fields = {"cause": cause.kind.value} | {name: value for name, value in about.items() if value is not None}
            fields["reason"] = str(cause)
        self._log.info(
            "role_changed", role=change.role.name.lower(), term=change.term, leader=change.leader_id, **fields
        )
        if self.appender.is_open and (change.role is not Role.LEADER or change.term != self._led_term):
            self.services.serve_as_follower()
            # First stop accepting: services and the appender now hand their requests to the new leader.
            self.appender.is_open = False
            self.services.resign()
            self.appender.close()
            self._on_registration_changed(None)
        self.services.role_changed(change)
        self._reads.try_again()

    def outcome_unknown(self, first_index: LogIndex) -> None:
        """Close the connections of clients whose entries were in flight, from ``first_index`` on, at the end of
        leadership.
        """
        self.appender.outcome_unknown(first_index)

    def end_turn(self) -> None:
        """Process the input of this turn. Called before sockets are flushed."""
        self._replica.pump()
        for end_turn in self.services.end_turns:
            end_turn()
        if self.appender.pending_items and self.appender.start_round():
            self._replica.pump()
        if self.connections.unsent.nbytes > self.connections.unsent_bytes_max:
            self.connections.drop_slow_readers()

    def check_invariants(self) -> None:
        """Assert the invariants of this broker's state between two turns, for tests: slow."""
        self._metadata.check_invariants()
        self._store.check_invariants()
        self.appender.check_invariants()
        self._clients.check_invariants()
        self.connections.check_invariants()
        self._reads.check_invariants()
        self.slow_responses.check_invariants()
        self.services.check_invariants()
        if self.appender.is_open:
            self.queue_tails.check_invariants()
        committed = self._replica.commit_index
        assert self._applied_index <= committed, f"entry {self._applied_index} is applied, {committed} is committed"

    def _lead(self, term: Term) -> None:
        """Start to accept messages: all entries of earlier terms are applied, so queue offsets are known."""
        assert not self.appender.is_open, f"term {term} begins while messages of term {self._led_term} are accepted"
        assert term > self._led_term, f"this broker leads in term {term} after term {self._led_term}"
        self._led_term = term
        self.appender.open()
        self.services.lead()
        self._log.info("leading", term=term, applied_index=self._applied_index)
        self._announce()
        self._on_registration_changed(None)

    def _announce(self) -> None:
        """Replicate the facts about this leader that are not in the log yet."""
        settings = self._settings
        commands = missing_system_topics(
            self._metadata,
            settings.cluster,
            settings.group,
            self._environment.wall_clock_ms(),
            default_topic_queues=settings.default_topic_queues,
        )
        if self._metadata.replicas.get(settings.node_id) != self.replica_address:
            commands.append(encode_command(PutReplica(node_id=settings.node_id, address=self.replica_address)))
        for command in commands:
            self.appender.add_command(command)

    def _dispatch(self, entry: CommittedEntry) -> None:
        """Apply an entry to queues and metadata. Raises one of `_UNUSABLE`."""
        try:
            commands, sequenced_runs = self._derive(entry, entry.annotation)
        except (AnnotationDamaged, *_UNUSABLE) as error:
            if not entry.annotation:
                raise
            # The annotation is a hint from the leader; the records contain the same. What was applied from it is
            # skipped.
            self._limited_log.warning("annotation_damaged", index=entry.index, error=str(error))
            commands, sequenced_runs = self._derive(entry, b"")
        if self._catch_up is None:
            for run in sequenced_runs:
                self._metadata.sequences.add_run(run)
        for command in commands:
            if self._catch_up is not None:
                # The metadata is ahead of the queues; only the effect on queues is still missing.
                effects = queue_effects(command, self._metadata, self._store.ends)
            else:
                effects = self._metadata.apply(command, self._store.ends, PhysicalOffset(entry.pos))
                if isinstance(command, RaiseLevel):
                    self._level_reached()
            for topic in effects.deleted_topics:
                self.queue_tails.deletion_applied(topic)
                self._store.drop_topic(topic)
                self.services.topic_deleted(topic)
            for topic in effects.hidden_topics:
                self.services.topic_deleted(topic)
            for topic, queue_id, first in effects.begun_queues:
                self._store.begin_queue(topic, queue_id, first)
            for topic, queue_id, first in effects.expired:
                self._store.begin_at(topic, queue_id, first)
            for topic in effects.topics:
                self.services.topic_changed(topic)
            if effects.topics:
                self._on_registration_changed(effects.topics)
            if effects.replicas:
                self.services.replicas_changed()
            for group in effects.groups:
                self.services.consumer_group_changed(group)

    def _level_reached(self) -> None:
        level = self._metadata.format_level.level
        self._environment.set_level(level)
        self._log.info("format_level_raised", format_level=level)

    def _derive(self, entry: CommittedEntry, annotation: bytes) -> tuple[list[Command], list[SequencedRun]]:
        """Add the entry's records to the queues. Returns its commands, and its records with sequence numbers."""
        commands: list[bytes] = []
        sequenced_runs: list[SequencedRun] = []
        if annotation:
            entry_effects = self.appender.own_entry(entry.index, annotation)
            if entry_effects is None:
                commands, records, runs = split_annotation(annotation, entry.body)
                self._store.append_shipped(runs)
                sequenced_runs = runs_of_records(records)
            else:
                if annotation.startswith(COMMANDS_START):
                    commands, _ = split_commands(annotation, entry.body)
                sequenced_runs = entry_effects.sequences
                self._store.append_built(entry_effects.runs)
        else:
            sequenced_runs = runs_of_records(scan_sequenced(entry.body))
            queue_runs, commands = scan_runs(entry.body, PhysicalOffset(entry.pos + HEADER_BYTES))
            for run in queue_runs:
                self._store.append_run(run)
        return [decode_command(command) for command in commands] if commands else [], sequenced_runs

    # -- timers ------------------------------------------------------------------------------------------------------

    def periodic(self) -> Sequence[Periodic]:
        """Return all actions that a timer calls while the broker runs."""
        upkeep = self._limits.upkeep
        return (
            Periodic(
                _TRY_AGAIN_SECONDS, self.try_again, lambda: now_if(self.connections.kept_waiting or self._reads.retries)
            ),
            Periodic(
                _EXPIRE_CLIENT_REQUESTS_SECONDS,
                self.connections.expire_requests,
                lambda: now_if(self.connections.open_requests),
            ),
            *self.services.periodic,
            Periodic(upkeep.announce_again_seconds, self.announce_again),
            Periodic(_STALLED_CHECK_SECONDS, self.connections.close_stalled),
            Periodic(upkeep.flush_queues_seconds, self.flush_queues, lambda: now_if(self._store.is_flush_due)),
            Periodic(self._settings.idle_seconds_max, self.connections.close_idle),
        )

    def tasks(self) -> Sequence[Task]:
        """Return the tasks that run as long as the broker runs."""
        return self.slow_responses.run, *self.services.tasks

    def try_again(self) -> None:
        """Retry failed reads, and resume clients that have read their responses."""
        self.connections.resume_readers()
        self._reads.try_again()

    def record_delay(self, seconds: float) -> None:
        """Record that the event loop was blocked for ``seconds``."""
        self._lateness.add(seconds, self._clock())

    def announce_again(self) -> None:
        """Replicate this leader's facts about itself again, if a full disk kept them out of the log."""
        if self.appender.is_open:
            self._announce()

    def flush_queues(self) -> None:
        """Write some of the consume queues to their files, and drop entries whose messages were deleted."""
        now = self._clock()
        calls = max(1, round((now - self._flushed_at) / self._limits.upkeep.flush_queues_seconds))
        self._flushed_at = now
        try:
            self._store.flush_some(calls=calls)
            self._store.expire_some(PhysicalOffset(self.context.tier.visible_pos))
        except OSError as error:
            # They stay in memory, and the log has everything.
            self._log.error("queues_not_flushed", error=str(error))

    def prepare_checkpoint(self) -> PendingCheckpoint | None:
        """Begin a checkpoint of the applied state.

        None if this replica's disk does not have all of it yet, or if nothing was applied since the last one. An idle
        broker writes its last one twice if retention waits for that: the one before it still needs older files.
        """
        index = self._applied_index
        last = self._last_checkpoint
        if index > self._replica.core.durable or index == 0 or self._catch_up is not None:
            return None
        before = NO_INDEX if last is None else last.checkpoint.applied_index
        assert before <= index, f"a checkpoint of entry {index} follows one of entry {before}"
        if last is not None and last.committed and last.checkpoint.applied_index == index:
            file_start = last.checkpoint.applied_pos // self._settings.segment_bytes * self._settings.segment_bytes
            is_refilled = self._store.refilled_pos != self._checkpointer.refilled_pos
            if self._checkpointer.floor_pos >= file_start and not is_refilled:
                return None
        ref = self._replica.log.locate(index)
        self._last_checkpoint = self._checkpointer.prepare(
            applied_index=index,
            applied_term=ref.term,
            applied_pos=PhysicalOffset(ref.pos + ref.size),
            state=self._metadata.capture(),
        )
        return self._last_checkpoint

    def snapshot(self) -> tuple[LogIndex, Callable[[], bytes]] | None:
        """Capture the state for a replica that gets only later entries of the log.

        Returns the index of that entry and a function that encodes the snapshot; it is slow and may run in a worker
        thread. None while metadata is ahead of the queues, which is the case for a while after loading such a snapshot.
        """
        if self._catch_up is not None:
            return None
        index = self._applied_index
        ref = self._replica.log.locate(index)
        state, ends = self._metadata.capture(), self._store.capture_ends()

        def encode() -> bytes:
            end = PhysicalOffset(ref.pos + ref.size)
            return encode_checkpoint(
                Checkpoint(applied_index=index, applied_term=ref.term, applied_pos=end, queues=ends(), state=state())
            )

        return index, encode

    # -- name servers ------------------------------------------------------------------------------------------------

    def registration(self, topics: Collection[str] | None) -> Registration:
        """Return this replica's entry in the route: its broker id is 0 while it leads, else its own.

        Contains these topics if only they changed, or all for None. A deletion also sends all topics, since the name
        server drops those that are missing.
        """
        settings, all_topics = self._settings, self._metadata.topics
        leads = self.appender.is_open
        whole = topics is None or any(name not in all_topics for name in topics)
        configs = all_topics.copy() if whole else {name: all_topics[name] for name in topics or ()}
        version = self._metadata.topics_version(self._replica.core.term)
        filter_servers = self.services.filter_servers()

        def body() -> bytes:
            topics = {name: as_registered(config) for name, config in configs.items()}
            return RegisterBrokerBody(topics=topics, data_version=version, filter_servers=filter_servers).encode()

        return Registration(
            cluster=settings.cluster,
            broker_name=settings.group,
            broker_id=LEADER_ID if leads else broker_id_of(settings.node_id),
            address=self._address,
            body=body,
            topic_count=len(configs),
            whole=whole,
        )

    def _counters(self) -> dict[str, int]:
        return {
            **self.connections.counters(),
            "requests_refused": ERROR_ANSWERS.refused,
            "requests_failed": ERROR_ANSWERS.failed,
            "clock_jumps": self._environment.wall_clock_ms.jumps,
            "clock_disbelieved_ms": self._environment.wall_clock_ms.disbelieved_ms,
            "elections": self._elections,
            "log_scrubs": self._replica.log.scrubs,
            "log_scrubbed_bytes": self._replica.log.scrubbed_bytes,
            "messages": self.appender.messages,
            "pending_bytes": self.appender.pending_bytes,
            **self.services.counters(),
            "longest_delay_ms": round(1000 * self._lateness.longest(self._clock())),
        }
