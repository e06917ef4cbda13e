"""Records the events of the demonstration, and checks that the product kept its promises. Pure.

A message is identified by its number: the position of the line in the text. Recorded are acknowledgements with the
place where the message is stored, failed sends, and every delivery.

The rules for order within a queue:

- a consumer gets new messages of a queue with rising offsets (a repeated one is a duplicate);
- of two messages acknowledged at their first attempt in one queue, the one sent first has the lower offset. A retried
  message may end up behind others in flight, which is the price of pipelining, and is exempt from this rule;
- an offset holds one message for ever: the acknowledged one, and the same for every consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Queue(NamedTuple):
    """A queue of the demonstration's topic."""

    broker_name: str
    queue_id: int


class Acknowledgement(NamedTuple):
    """The place of an acknowledged message. ``first_attempt``: no earlier attempt to send it had failed."""

    queue: Queue
    queue_offset: int
    first_attempt: bool


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """Counts of events; ``examples`` describe the first few violations."""

    sent: int
    acknowledged: int
    outcome_unknown: int
    rejected: int
    sent_again: int
    deliveries: int
    consumed: int
    duplicates: int
    lost: int
    out_of_order: int
    wrong_content: int
    examples: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether no acknowledged message is missing, changed, or out of order within its queue."""
        return self.lost == 0 and self.out_of_order == 0 and self.wrong_content == 0


_EXAMPLES_MAX = 5


@dataclass(slots=True)
class History:
    """Records events, which `verdict` evaluates. Messages must be sent with rising numbers."""

    sent: int = 0
    acknowledgements: dict[int, Acknowledgement] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    deliveries: int = 0
    consumed: set[int] = field(default_factory=set)
    _had: dict[tuple[str, Queue], set[int]] = field(default_factory=dict)
    _highest: dict[tuple[str, Queue], int] = field(default_factory=dict)
    _contents: dict[Queue, dict[int, int]] = field(default_factory=dict)
    _consumer_breaches: int = 0
    _content_breaches: int = 0
    _examples: list[str] = field(default_factory=list)

    def on_acknowledge(self, number: int, queue: Queue, queue_offset: int, *, first_attempt: bool) -> None:
        """Record that message ``number`` was acknowledged."""
        self.acknowledgements[number] = Acknowledgement(queue, queue_offset, first_attempt)

    def on_delivery(self, consumer: str, queue: Queue, queue_offset: int, number: int, *, intact: bool) -> None:
        """Record that a consumer got message ``number``. ``intact``: its body is the line that was sent."""
        self.deliveries += 1
        self.consumed.add(number)
        if not intact:
            self._content_breaches += 1
            self._add_example(f"{_offset_text(queue, queue_offset)}: the body is not line {number}")
        before = self._contents.setdefault(queue, {}).setdefault(queue_offset, number)
        if before != number:
            self._content_breaches += 1
            self._add_example(
                f"{_offset_text(queue, queue_offset)} was message {before} once and message {number} later"
            )
        key = (consumer, queue)
        had = self._had.setdefault(key, set())
        if queue_offset in had:
            return
        had.add(queue_offset)
        highest = self._highest.get(key, -1)
        if queue_offset < highest:
            self._consumer_breaches += 1
            self._add_example(f"{consumer} got {_offset_text(queue, queue_offset)} after offset {highest}")
        else:
            self._highest[key] = queue_offset

    @property
    def missing_count(self) -> int:
        """The number of acknowledged messages that were not consumed yet."""
        return sum(number not in self.consumed for number in self.acknowledgements)

    def verdict(self) -> DemoVerdict:
        """Check the recorded events against the promises, and return the verdict."""
        lost_numbers = [number for number in self.acknowledgements if number not in self.consumed]
        for number in lost_numbers[:_EXAMPLES_MAX]:
            self._add_example(f"message {number} was acknowledged and never consumed")
        misplaced_count = self._count_misplaced()
        return DemoVerdict(
            sent=self.sent,
            acknowledged=len(self.acknowledgements),
            outcome_unknown=len(self.unknown),
            rejected=len(self.rejected),
            sent_again=sum(not each.first_attempt for each in self.acknowledgements.values()),
            deliveries=self.deliveries,
            consumed=len(self.consumed),
            duplicates=self.deliveries - len(self.consumed),
            lost=len(lost_numbers),
            out_of_order=self._consumer_breaches + self._send_order_breaches(),
            wrong_content=self._content_breaches + misplaced_count,
            examples=tuple(self._examples[:_EXAMPLES_MAX]),
        )

    def _count_misplaced(self) -> int:
        breaches = 0
        places: dict[tuple[Queue, int], int] = {}
        for number, (queue, queue_offset, _) in self.acknowledgements.items():
            content = self._contents.get(queue, {}).get(queue_offset)
            other = places.setdefault((queue, queue_offset), number)
            if content is not None and content != number:
                breaches += 1
                self._add_example(
                    f"message {number} was acknowledged at {_offset_text(queue, queue_offset)}, which holds {content}"
                )
            elif other != number:
                breaches += 1
                self._add_example(
                    f"messages {other} and {number} were both acknowledged at {_offset_text(queue, queue_offset)}"
                )
        return breaches

    def _send_order_breaches(self) -> int:
        breaches = 0
        highest: dict[Queue, tuple[int, int]] = {}
        for number in sorted(self.acknowledgements):
            queue, queue_offset, first_attempt = self.acknowledgements[number]
            if not first_attempt:
                continue
            last_offset, last_number = highest.get(queue, (-1, -1))
            if queue_offset < last_offset:
                breaches += 1
                self._add_example(
                    f"message {number} is at {_offset_text(queue, queue_offset)}, before message {last_number} "
                    f"at {last_offset}, which was sent earlier"
                )
            else:
                highest[queue] = queue_offset, number
        return breaches

    def _add_example(self, sentence: str) -> None:
        if len(self._examples) < _EXAMPLES_MAX:
            self._examples.append(sentence)


def _offset_text(queue: Queue, queue_offset: int) -> str:
    return f"{queue.broker_name}/{queue.queue_id} offset {queue_offset}"
