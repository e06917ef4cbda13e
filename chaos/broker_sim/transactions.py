"""The workload "transactions": half messages that are committed, rolled back, or left open until brokers check back.

What must hold: each stored half message is ended once, in one entry with its visible copy if it is committed; it is
visible if and only if its client committed it; and the outcome is the one reported to the client. Answers to
check-backs are the client's decision, whenever they arrive. Some half messages have several messages and consumer
offsets: see `chaos.broker_sim.transaction_sets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from chaos.broker_sim.clients import ClientResponse, Connection, LostResponse, OnResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord, SentMessage
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.transaction_sets import KIND, SetTransactions, is_set
from chaos.broker_sim.workload import Workload
from chaos.violation import Violation
from checkers import Checker
from checkers.recording import Worker
from checkers.transactions import COMMIT, check_transactions
from checkers.transactions import ROLLBACK as ROLLED_BACK
from mq.broker.state.commands import CommitOffsets, ResetOffset
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.broker.transaction.half_messages import DISCARDED_QUEUE_ID, HALF_QUEUE_ID
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import COMMITTED, PREPARED, ROLLBACK, TRANSACTION_MASK, decode_record
from mq.protocol.names import HALF_TOPIC, UNENDED_TOPIC
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from mq.protocol.requests.transactions import CheckTransactionState

_GROUP = "PG"
_HEARTBEAT_SECONDS = 1.0
_ORPHAN_SECONDS = 6.0
"""Seconds after which a client knows how its send ended, and answers checks for half messages without a response."""


class Transactions(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_transactions, *Workload.checkers)
    name = "transactions"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._checks_max = self.rng.choice((3, 15, 15))
        self._open: dict[int, CommittedRecord] = {}
        """Half messages that are not ended, by offset."""
        self._decisions: dict[int, int | None] = {}
        """The outcome that a client wants for each half message, by offset; None if it never ends it."""
        self._outcomes: dict[int, int] = {}
        self._end_offsets: list[int] = []
        self._visible: dict[int, list[CommittedRecord]] = {}
        self._put_aside: Counter[int | str] = Counter()
        self._sets = SetTransactions(cluster, self, self._on_stage, _GROUP)
        self._fence_calls: dict[int, Callable[[], None]] = {}

    def settings(self) -> dict[str, Any]:
        return {
            "transaction_timeout_seconds": 0.7,
            "transaction_check_seconds": 1.0,
            "transaction_checks_max": self._checks_max,
        }

    # -- what clients do -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        self.cluster.at(0.0, self._send_heartbeats)

    def _send_heartbeats(self) -> None:
        for number, client in enumerate(self.clients):
            body = HeartbeatData(client_id=f"c{number}", producers=[ProducerData(group=_GROUP)]).encode()
            for node in self.cluster.nodes.values():
                client.request(node, RequestCode.HEART_BEAT, None, body, lambda _: None)
        self.cluster.at(self.cluster.now + _HEARTBEAT_SECONDS, self._send_heartbeats)

    def run_operation(self) -> None:
        chance = self.rng.random()
        if chance < 0.3:
            self._sets.run_operation()
        elif chance < 0.45:
            self.send(self.new("plain", {}))
        else:
            self.send(self.new("half", {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: _GROUP}))

    def operation(self, message: SentMessage) -> str | None:
        return {"plain": "send", KIND: "stage"}.get(message.kind, "half")

    def copies_topic(self, message: SentMessage) -> str | None:
        """Return the topic that has at most one copy per send: `HALF_TOPIC` for half messages, None for sets."""
        return {"plain": message.topic, KIND: None}.get(message.kind, HALF_TOPIC)

    def send_flags(self, message: SentMessage) -> int:
        return PREPARED if message.kind == "half" else 0

    def on_acknowledged(self, message: SentMessage, response: ClientResponse) -> None:
        """Run the local transaction of a half message. It is ended, or stays open."""
        if message.kind != "half":
            return
        self._decide(*message.acked[-1])

    def _on_stage(self, offset: int, position: int, on_fence: Callable[[], None]) -> None:
        self._fence_calls[offset] = on_fence
        self._decide(offset, position)

    def _decide(self, offset: int, position: int) -> None:
        if offset in self._decisions:
            return  # a check arrived first
        outcome = self.rng.choices((COMMITTED, ROLLBACK, None), (60, 25, 5))[0]
        self._decisions[offset] = outcome
        if outcome is not None and self.rng.random() < 0.8:
            later = self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 2.0)))
            self.cluster.at(self.cluster.now + later, self._end, offset, position, outcome)
        if self.rng.random() < 0.05:
            self._end_wrongly(offset, position)

    def _end(self, offset: int, position: int, outcome: int) -> None:
        self.counts["ends"] += 1
        on_response = self._begin_end(offset, position, outcome)
        self._ask_to_end(offset, position, outcome, _GROUP, None if self.rng.random() < 0.3 else on_response)
        if self.rng.random() < 0.1:  # twice, perhaps at another replica
            self._ask_to_end(offset, position, outcome, _GROUP, self._begin_end(offset, position, outcome))

    def _begin_end(self, offset: int, position: int, outcome: int) -> OnResponse:
        worker, value = Worker(self.recording), self._history_value(offset, outcome)
        if value is not None:
            worker.invoke("end-transaction", v=value)

        def on_response(response: ResponseOrLoss) -> None:
            is_done = isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS
            if value is not None and is_done:
                worker.ok("end-transaction", v=value)
            elif value is not None:
                worker.info("end-transaction", str(response), v=value)
            if is_done:
                if self._outcomes.get(offset) != outcome:
                    raise Violation(
                        f"end: {outcome} of half message {offset} was acknowledged, but the outcome is "
                        f"{self._outcomes.get(offset)}"
                    )
            else:
                kind = "info" if response is LostResponse.UNKNOWN else "fail"
                self.counts[f"ends {kind}"] += 1
                if isinstance(response, ClientResponse) and response.code == ResponseCode.PULL_OFFSET_MOVED:
                    self._fence_calls[offset]()
                    if self._decisions[offset] != ROLLBACK:
                        self._decisions[offset] = ROLLBACK  # others have consumed its messages, and for ever
                        self._end(offset, position, ROLLBACK)

        return on_response

    def _history_value(self, offset: int, outcome: int) -> tuple[str, str] | None:
        """Return a half message and its outcome for the history; None for a half message with several messages."""
        half = self.ledger.queues[HALF_TOPIC, HALF_QUEUE_ID][offset]
        return None if is_set(half) else (str(half.value), COMMIT if outcome == COMMITTED else ROLLED_BACK)

    def _end_wrongly(self, offset: int, position: int) -> None:
        """Let a client try to end a half message that does not exist or is not its own."""

        def on_response(response: ResponseOrLoss) -> None:
            is_done = isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS
            # For a half message that is ended already, success is allowed if the outcome is the same.
            if is_done and (wrong[2] == _GROUP or offset not in self._outcomes):
                raise Violation(f"end: {wrong} was ended, where {offset}, {position} is a half message")
            if is_done and (outcome == COMMITTED) != (self._outcomes[offset] == COMMITTED):
                raise Violation(
                    f"end: {outcome} of half message {offset} was acknowledged, but the outcome is "
                    f"{self._outcomes[offset]}"
                )

        wrong = self.rng.choice(
            ((offset, position + 1, _GROUP), (offset + 1000, position, _GROUP), (offset, position, "X"))
        )
        outcome = self.rng.choice((COMMITTED, ROLLBACK))
        self._ask_to_end(wrong[0], wrong[1], outcome, wrong[2], on_response)

    def _ask_to_end(
        self, offset: int, position: int, outcome: int, group: str, on_response: Any, *, checked: bool = False
    ) -> None:
        ext = {
            "producerGroup": group,
            "tranStateTableOffset": offset,
            "commitLogOffset": position,
            "commitOrRollback": outcome,
            "msgId": "M",
            "fromTransactionCheck": checked,
        }
        code, node = RequestCode.END_TRANSACTION, self.cluster.some_node(self.rng)
        self.rng.choice(self.clients).request(node, code, ext, b"", on_response, serialization=self.encoding(code))

    def on_broker_request(self, connection: Connection, request: Any, body: bytes) -> None:
        """Respond to a check-back with the client's decision, if there is one."""
        if not isinstance(request, CheckTransactionState):
            return
        self.counts["checks"] += 1
        ext = request.ext
        offset, position = ext.half_queue_offset, ext.half_physical_offset
        half = self.ledger.queues[HALF_TOPIC, HALF_QUEUE_ID]
        if offset >= len(half) or half[offset].record.physical_offset != position:
            raise Violation(f"check: half message {offset} at {position} was checked, but is not committed")
        message = decode_record(memoryview(body))
        if message.topic != self.topic or message.body != half[offset].record.body:
            raise Violation(f"check: half message {offset} was checked with {message}")
        since = half[offset].at if is_set(half[offset]) else self.ledger.messages[half[offset].value].since
        if offset not in self._decisions:
            if self.cluster.now < since + _ORPHAN_SECONDS:
                return
            self._decisions[offset] = ROLLBACK  # its client does not know of it
        decision = self._decisions[offset]
        if decision is None:
            return
        if (value := self._history_value(offset, decision)) is not None:
            Worker(self.recording).ok("check", v=value)
        self._ask_to_end(offset, position, decision, _GROUP, None, checked=True)

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        record = commit.record
        if record.topic == HALF_TOPIC:
            self._open[record.queue_offset] = commit
        elif record.topic == self.topic and record.sys_flag & TRANSACTION_MASK:
            self._visible.setdefault(commit.value, []).append(commit)
        elif record.topic == self.topic and self.ledger.messages[commit.value].kind in ("half", KIND):
            raise Violation(f"transaction: {commit.value} is visible as a plain message in {commit.place}")
        elif record.topic == UNENDED_TOPIC:
            self._put_aside[_name(commit)] += 1

    def on_command(self, command: Any) -> None:
        if isinstance(command, CompleteEntries) and (command.topic, command.queue_id) == (HALF_TOPIC, HALF_QUEUE_ID):
            self._end_offsets += command.offsets
        elif isinstance(command, CommitOffsets):
            self._sets.add_offsets(command)
        elif isinstance(command, ResetOffset):
            raise Violation(f"offset: {command} was not requested")
        elif isinstance(command, SkipEntries):
            if (command.topic, command.queue_id) != (HALF_TOPIC, DISCARDED_QUEUE_ID):
                raise Violation(f"lost: {command}, but the log has every open half message")
            first_open = min(self._open, default=len(self._outcomes))
            if command.offset > 2 * max(0, first_open - self.cluster.limits.waiting.discarded_remembered_max):
                raise Violation(f"transaction: {command} forgets what was discarded before {first_open} too early")
            self.counts["discarded forgotten"] += 1

    def on_entry_end(self) -> None:
        """Check that a committed half message is ended in the same entry as its visible copy."""
        for offset in sorted(self._end_offsets, key=self._is_told_by_offsets):
            half = self._open.pop(offset, None)
            if half is None:
                raise Violation(f"transaction: half {offset} is ended a second time")
            if self._is_visible(half):
                self._record_end(offset, COMMITTED)
            elif self._put_aside[_name(half)]:
                self._put_aside[_name(half)] -= 1
                self.counts["put aside"] += 1
                self._outcomes[offset] = 0
            else:
                self._record_end(offset, ROLLBACK)
        if surplus := [copy for copies in self._visible.values() for copy in copies] or +self._put_aside:
            raise Violation(f"transaction: {surplus} without the end of a half message in the same entry")
        self._sets.on_entry_end()
        self._end_offsets.clear()
        self._visible.clear()

    def _is_told_by_offsets(self, offset: int) -> bool:
        half = self._open.get(offset)
        return half is not None and is_set(half) and self._sets.is_told_by_offsets(half)

    def _is_visible(self, half: CommittedRecord) -> bool:
        """Return whether a half message became visible in this entry, and remove its copy from those to explain."""
        if is_set(half):
            return self._sets.take_outcome(half, self._visible) == COMMITTED
        copies = self._visible.get(half.value, [])
        copy = next((c for c in copies if c.record.prepared_offset == half.record.physical_offset), None)
        if copy is not None:
            copies.remove(copy)
        return copy is not None

    def _record_end(self, offset: int, outcome: int) -> None:
        self.counts["committed" if outcome == COMMITTED else "rolled back"] += 1
        self._outcomes[offset] = outcome
        decision = self._decisions.get(offset)
        if decision != outcome:
            raise Violation(f"transaction: half {offset} ended with {outcome}, but its client decided {decision}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def needed_from(self) -> int:
        return min((commit.record.physical_offset for commit in self._open.values()), default=1 << 62)

    def pending_count(self) -> int:
        return len(self._open)

    def check_end(self) -> None:
        super().check_end()
        self._sets.check_end()

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        super().check_replicas(processes)
        for process in processes:
            self._sets.check_offset(process.node_id, process.metadata.consumer_offsets)


def _name(commit: CommittedRecord) -> int | str:
    """Return the name that a half message shares with the copy that operators get."""
    return commit.value or commit.record.properties[props.UNIQUE_KEY]
