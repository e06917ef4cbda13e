"""The workload "delay": messages with delay levels and delivery times among plain ones; some are recalled.

What must hold: every stored delayed message becomes visible exactly once, in the same entry as its done mark, never
before its time by the clock of the leader that delivers it (and by no more than the clocks differ). In the end all are
visible except recalled ones; a message with a recall is either visible or recalled, as its client was told.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from chaos.broker_sim.clients import ClientResponse, LostResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord, SentMessage
from chaos.broker_sim.workload import Ends, Workload
from chaos.violation import Violation
from checkers import Checker
from checkers.delays import check_delays
from checkers.recording import Worker
from mq.broker.state.commands import AdvanceDelay
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.delay import DELAY_LEVELS_MS, timer_slot
from mq.protocol.messages.recall_handle import RecallHandle
from mq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

DelayedPlace = tuple[str, int, int]
"""Topic, queue id and offset of a pending message."""


class Delay(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_delays, *Workload.checkers)
    name = "delay"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._messages: dict[DelayedPlace, tuple[int, CommittedRecord]] = {}
        """Pending messages with their due time by the clock of the leader that stored them."""
        self._levels: Counter[int] = Counter()
        """The delivery position of each delay level."""
        self._copies: dict[int, list[CommittedRecord]] = {}
        self._done_places: set[DelayedPlace] = set()
        self._early_places: set[DelayedPlace] = set()
        """Messages done before earlier ones in their queue, one of which could not be read."""
        self._skips: list[SkipEntries] = []
        self._origins: Counter[int] = Counter()
        """The number of times that each message was stored for its client, pending copies included."""
        self._recall_requests: dict[DelayedPlace, bool] = {}
        """Requested recalls, and whether their client got success."""
        self._recalls: set[DelayedPlace] = set()

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        choice = self.rng.random()
        # Pending messages keep the log from being dropped.
        brief = "retention" in self.cluster.plan.kinds
        if choice < 0.2:
            self.send(self.new("plain", {}))
        elif choice < 0.6:
            level = 1 if brief else self.rng.choice((1, 1, 1, 2, 2, 3))
            self.send(self.new("delayed", {props.DELAY: str(level)}))
        else:
            delay_ms = self.rng.choice((-5, 1, 90, 300, 1500, 1500 if brief else 6000))
            if self.rng.random() < 0.5:
                self.send(self.new("delayed", {props.TIMER_DELAY_MS: str(max(1, delay_ms))}))
            else:
                self.send(self.new("delayed", {props.TIMER_DELIVER_MS: str(self.cluster.true_ms() + delay_ms)}))

    def operation(self, message: SentMessage) -> str | None:
        return "send" if message.kind == "plain" else "schedule"

    def begin_send(self, message: SentMessage, **fields: Any) -> Ends:
        """Record that a client begins to send a message, with the message's delay."""
        if (level := message.properties.get(props.DELAY)) is not None:
            fields["o"] = DELAY_LEVELS_MS[int(level) - 1]
        elif (due_ms := message.properties.get(props.TIMER_DELIVER_MS)) is not None:
            fields["o"] = int(due_ms) - self.cluster.true_ms()
        elif message.kind != "plain":
            fields["o"] = int(message.properties[props.TIMER_DELAY_MS])
        return super().begin_send(message, **fields)

    def on_acknowledged(self, message: SentMessage, response: ClientResponse) -> None:
        """Recall some messages: at once, late, or around their delivery."""
        if (handle := response.ext.get("recallHandle")) is None or self.rng.random() < 0.6:
            return
        seconds_left = RecallHandle.decode(handle).due_ms / 1000 - self.cluster.true_ms() / 1000
        later = self.rng.choice((0.0, self.rng.uniform(0.0, 1.0), max(0.0, seconds_left - self.rng.uniform(0.0, 0.05))))
        self.cluster.at(self.cluster.now + later, self._recall, message, handle)

    def _recall(self, message: SentMessage, handle: str) -> None:
        code = RequestCode.RECALL_MESSAGE
        fields = RecallHandle.decode(handle)
        assert fields.queue_offset is not None, f"a handle without a place: {handle}"
        place = (TIMER_TOPIC, timer_slot(fields.due_ms), fields.queue_offset)
        self._recall_requests.setdefault(place, False)
        worker, value = Worker(self.recording), str(message.value)
        worker.invoke("recall", v=value)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["recalled"] += 1
                worker.ok("recall", v=value)
                self._recall_requests[place] = True
                if place not in self._recalls:
                    raise Violation(f"recall: {message.value} at {place} was acknowledged as recalled, but is not")
            else:
                self.counts["not recalled"] += 1
                (worker.info if response is LostResponse.UNKNOWN else worker.fail)("recall", str(response), v=value)

        ext = {"topic": message.topic, "recallHandle": handle, "producerGroup": "P"}
        node = self.cluster.some_node(self.rng)
        self.rng.choice(self.clients).request(node, code, ext, b"", on_response, serialization=self.encoding(code))

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        record = commit.record
        place = (record.topic, record.queue_id, record.queue_offset)
        waits = record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        self._origins[commit.value] += waits or self.ledger.messages[commit.value].kind == "plain"
        if record.topic == SCHEDULE_TOPIC:
            self._messages[place] = (record.store_timestamp_ms + DELAY_LEVELS_MS[record.queue_id], commit)
        elif record.topic == TIMER_TOPIC:
            self._messages[place] = (int(record.properties[props.TIMER_OUT_MS]), commit)
        elif record.topic == self.topic and self.ledger.messages[commit.value].kind != "plain":
            self._copies.setdefault(commit.value, []).append(commit)

    def on_command(self, command: Any) -> None:
        if isinstance(command, AdvanceDelay):
            offsets = range(self._levels[command.level], command.offset)
            places = {(SCHEDULE_TOPIC, command.level - 1, offset) for offset in offsets}
            self._done_places |= places - self._early_places
            self._levels[command.level] = max(self._levels[command.level], command.offset)
        elif isinstance(command, CompleteEntries) and command.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            places = {(command.topic, command.queue_id, offset) for offset in command.offsets}
            self._done_places |= places
            self._early_places |= places
        elif isinstance(command, SkipEntries):
            self._skips.append(command)

    def on_entry_end(self) -> None:
        """Check that the completion mark of a delivered message is in the same entry as its visible copy."""
        # Of a message that was sent twice, one copy may be recalled and the other delivered, by the same entry.
        for place in sorted(self._done_places, key=lambda each: (each in self._recall_requests, each)):
            if place not in self._messages:
                raise Violation(f"duplicate: {place} is delivered a second time")
            due_ms, origin = self._messages.pop(place)
            if copies := self._copies.get(origin.value):
                self._check_shown(due_ms, origin, copies.pop())
            elif place in self._recall_requests:
                self._recalls.add(place)
            else:
                raise Violation(f"lost: {place} is done, but {origin.value} is not visible")
        for skip in self._skips:
            skipped_places = [
                each for each in self._messages if each[:2] == (skip.topic, skip.queue_id) and each[2] < skip.offset
            ]
            if skipped_places:
                raise Violation(f"lost: {skip}, but {min(skipped_places)} still waits")
        for copies in self._copies.values():
            for copy in copies:
                self._check_at_once(copy)
        self._done_places.clear()
        self._skips.clear()
        self._copies.clear()

    def _check_shown(self, due_ms: int, origin: CommittedRecord, copy: CommittedRecord) -> None:
        early_ms = due_ms - copy.record.store_timestamp_ms
        if early_ms > 2 * self.cluster.plan.wall_skew_ms:
            raise Violation(f"early: {copy.value} is visible {early_ms} ms before its time in {copy.place}")
        if copy.record.properties.get(props.UNIQUE_KEY) != f"U{copy.value}":
            raise Violation(f"properties: {copy.value} is visible with {copy.record.properties}")
        delay = (due_ms - origin.record.store_timestamp_ms) / 1000
        self.count_delay("shown after its time", max(0.0, copy.at - origin.at - delay))

    def _check_at_once(self, copy: CommittedRecord) -> None:
        """Check a message that was never pending: it must have been due when it was sent."""
        self._origins[copy.value] += 1
        due_ms = int(self.ledger.messages[copy.value].properties.get(props.TIMER_DELIVER_MS, 1 << 62))
        if due_ms > copy.record.store_timestamp_ms + 2 * self.cluster.plan.wall_skew_ms:
            raise Violation(f"duplicate: {copy.value} is visible at {copy.place}, but nothing waited for it")

    # -- the end -------------------------------------------------------------------------------------------------------

    def needed_from(self) -> int:
        return min((commit.record.physical_offset for _, commit in self._messages.values()), default=1 << 62)

    def pending_count(self) -> int:
        return len(self._messages)

    def check_end(self) -> None:
        super().check_end()
        for message in self.ledger.messages.values():
            count = self._origins[message.value]
            if not len(message.acked) <= count <= message.copies_max:
                raise Violation(
                    f"{'lost' if count < len(message.acked) else 'duplicate'}: {message} is stored {count} times"
                )
