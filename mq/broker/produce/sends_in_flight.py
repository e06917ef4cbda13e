"""Tracks numbered sends in flight, and the repeats that wait for their outcome.

Theory of operation. `NumberedSends` are one or more sends whose outcome will be known together. `NumberedSend` is a
single send, and stands for the connection of its sender. `NumberedBlock` is all numbered ones in a block of plain
sends. Each of these has a number above all of its producer that are stored or in flight, so it is certainly new.

Nearly all that is ever asked is the highest number of a producer in flight. So a block tells no more than that for each
of its producers, and which block has the highest is kept by producer. The single numbers of a block are looked up when
there may be a repeat.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.state.producer_sequences import SequencedRange
from mq.broker.write_path.outcome import Outcome, Unknown
from mq.broker.write_path.pending import SendRequest
from mq.protocol.messages.sequencing import SequenceRange
from mq.protocol.wire.encoding import ONEWAY_FLAG

WAITING_MAX: Final = 16
"""Repeats that wait for the outcome of one message."""
_WAITING_BYTES: Final = 1024
"""Memory of a waiting request without its body; added to the pending bytes."""
_NONE: Final = -1

Reserve = Callable[[int], None]
"""Adds to the pending bytes; a negative number subtracts."""
SendsOf = Callable[[str], list[tuple[int, int, int]]]
"""The sends of a producer in a block, in their order: the first and the last number, and where it is among the
requests of the block.
"""


class NumberedSends:
    """Sends in flight that share one outcome.

    Attributes:
        waiting_calls: repeats, by the place among these of the send that they wait for.
    """

    __slots__ = ("_reserve", "waiting_calls")

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self.waiting_calls: dict[int, list[Call[SendRequest]]] = {}

    def wait(self, place: int, call: Call[SendRequest]) -> bool:
        """Hold a repeat until the outcome of the send at this place is known; returns False if too many wait for it."""
        calls = self.waiting_calls.setdefault(place, [])
        if len(calls) >= WAITING_MAX:
            return False
        calls.append(call)
        self._reserve(_waiting_bytes(call))
        return True

    def end(self) -> list[Call[SendRequest]]:
        """Remove and return the held repeats, in the order of the sends that they wait for."""
        if not self.waiting_calls:
            return []
        repeats = [call for _, calls in sorted(self.waiting_calls.items()) for call in calls]
        self.waiting_calls = {}
        self._reserve(-sum(map(_waiting_bytes, repeats)))
        return repeats


class Overlap(NamedTuple):
    """A send in flight: the `NumberedSends` that contain it, its place in them, and its numbers."""

    sends: NumberedSends
    place: int
    numbers: SequenceRange


class _SingleSends(NamedTuple):
    """The single sends of one producer in flight, in the order of their numbers, which do not overlap."""

    firsts: list[int]
    sends: list[NumberedSend]


class InFlightSends:
    """Tracks the sends with sequence numbers that are in flight."""

    def __init__(self) -> None:
        self._single: dict[str, _SingleSends] = {}
        self._blocks: dict[NumberedBlock, None] = {}
        """The blocks in flight, in the order in which they began."""
        self._latest: dict[str, NumberedBlock] = {}
        """The latest block with sends of each producer: these have its highest numbers of all blocks."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in flight."""
        return not (self._single or self._blocks)

    def find_overlap(self, numbers: SequenceRange) -> Overlap | None:
        """Return the send in flight with the highest numbers that has some of these numbers; None without one."""
        producer, low, high = numbers
        overlap: Overlap | None = None
        single = self._single.get(producer)
        if single is not None:
            at = bisect_right(single.firsts, high) - 1
            if at >= 0 and single.sends[at].numbers.last >= low:
                overlap = Overlap(single.sends[at], 0, single.sends[at].numbers)
        for block in self._blocks:
            if block.highest.get(producer, _NONE) < low:
                continue
            for first, last, place in block.sends_of(producer):
                if first <= high and last >= low and (overlap is None or first > overlap.numbers.first):
                    overlap = Overlap(block, place, SequenceRange(producer, first, last))
        return overlap

    def highest(self, producer: str) -> int:
        """Return the highest number of a producer in flight; -1 without any."""
        block, single = self._latest.get(producer), self._single.get(producer)
        highest = _NONE if block is None else block.highest[producer]
        return highest if single is None else max(highest, single.sends[-1].numbers.last)

    def add(self, send: NumberedSend) -> None:
        """Add a send. Its numbers overlap no other send in flight."""
        producer, first, _ = send.numbers
        single = self._single.get(producer)
        if single is None:
            self._single[producer] = _SingleSends([first], [send])
            return
        at = bisect_left(single.firsts, first)
        assert single.firsts[at : at + 1] != [first], f"{send.numbers} is in flight already"
        single.firsts.insert(at, first)
        single.sends.insert(at, send)

    def remove(self, send: NumberedSend) -> None:
        """Remove a send if it is in flight."""
        producer, first, _ = send.numbers
        single = self._single.get(producer)
        if single is None:
            return
        at = bisect_left(single.firsts, first)
        if at == len(single.firsts) or single.sends[at] is not send:
            return
        del single.firsts[at], single.sends[at]
        if not single.firsts:
            del self._single[producer]

    def add_block(self, block: NumberedBlock) -> None:
        """Add a block. Its numbers are above all others of their producers."""
        self._blocks[block] = None
        self._latest.update(dict.fromkeys(block.highest, block))

    def remove_block(self, block: NumberedBlock) -> None:
        """Remove a block if it is in flight."""
        blocks, latest = self._blocks, self._latest
        if block not in blocks:
            return
        is_first = next(iter(blocks)) is block
        del blocks[block]
        for producer in block.highest:
            if latest[producer] is not block:
                continue
            del latest[producer]
            if is_first:  # as nearly always; one that is refused may end before those that are being stored
                continue
            for other in reversed(blocks):
                if producer in other.highest:
                    latest[producer] = other
                    break

    def check_invariants(self) -> None:
        """Assert that no number is in flight twice, and that few requests wait for one send; for tests."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        for producer, single in self._single.items():
            assert single.firsts, f"producer {producer} is listed without sends in flight"
            assert single.firsts == [each.numbers.first for each in single.sends], f"{producer}: {single.firsts}"
            assert {each.numbers.producer for each in single.sends} == {producer}, f"{producer} has others' sends"
            ranges[producer] = [each.numbers[1:] for each in single.sends]
        latest: dict[str, NumberedBlock] = {}
        for block in self._blocks:
            assert block.highest, "a block is listed without sends in flight"
            for producer, highest in block.highest.items():
                sends = [(first, last) for first, last, _ in block.sends_of(producer)]
                assert sends, f"a block is listed without sends of {producer}"
                assert sends[-1][1] == highest, f"{producer}: {highest} is the highest number of {sends}"
                ranges.setdefault(producer, []).extend(sends)
                latest[producer] = block
        assert latest == self._latest, f"the latest blocks of {sorted(self._latest)}; they are of {sorted(latest)}"
        for producer, each in ranges.items():
            for (_, last), (first, _) in pairwise(sorted(each)):
                assert last < first, f"{producer}: {first} is in flight twice, sends up to {last} are"
        groups: list[NumberedSends] = [*self._blocks, *(each for one in self._single.values() for each in one.sends)]
        most = max((len(calls) for group in groups for calls in group.waiting_calls.values()), default=0)
        assert most <= WAITING_MAX, f"{most} requests wait for one send; maximum: {WAITING_MAX}"


class NumberedSend(NumberedSends):
    """Stands for the sender of a numbered send: passes the outcome to the first sender, and serves the repeats.

    Attributes:
        numbers: of all messages of the send.
        stored_ranges: the messages that were stored before; the others are in flight.
        call: the first request, changed to want an answer and to have this sender.
    """

    __slots__ = ("_first", "_in_flight", "call", "host", "numbers", "stored_ranges")

    def __init__(
        self,
        in_flight: InFlightSends,
        reserve: Reserve,
        numbers: SequenceRange,
        stored_ranges: Sequence[SequencedRange],
        first: Call[SendRequest],
    ) -> None:
        super().__init__(reserve)
        self._in_flight = in_flight
        self._first = first
        self.numbers = numbers
        self.stored_ranges = stored_ranges
        request = first.request
        self.host = first.connection.host
        oneway = request.flag & ONEWAY_FLAG
        twoway = msgspec.structs.replace(request, flag=request.flag & ~ONEWAY_FLAG) if oneway else request
        self.call = Call(cast("ClientConnection", self), twoway, first.body, first.serialization)
        in_flight.add(self)

    def send(self, data: bytes) -> None:
        """Send ``data`` to the first sender, and serve the repeats again."""
        repeats = self.end()
        self._first.answer(data)
        _serve(repeats)

    def answer(self, request: Any, reply: bytes) -> None:
        """Pass the response on as `send` does. Whether the client wants a response is checked there."""
        self.send(reply)

    def close(self, reason: str) -> None:
        """Close the connections of the first sender and of the senders of repeats, since the outcome is unknown."""
        for call in (self._first, *self.end()):
            call.connection.close(reason)

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """Serve the first request and the repeats again: the message was not stored, and another may lead."""
        _serve([self._first, *self.end()])

    def end(self) -> list[Call[SendRequest]]:
        self._in_flight.remove(self)
        return super().end()


class NumberedBlock(NumberedSends):
    """The numbered sends of a full block, until its outcome is known.

    Attributes:
        highest: for each of their producers the highest number.
        sends_of: see `SendsOf`.
    """

    __slots__ = ("_in_flight", "highest", "sends_of")

    def __init__(
        self, in_flight: InFlightSends, reserve: Reserve, highest: Mapping[str, int], sends_of: SendsOf
    ) -> None:
        assert highest, "a block without sends that have numbers"
        super().__init__(reserve)
        self._in_flight = in_flight
        self.highest = highest
        self.sends_of = sends_of
        in_flight.add_block(self)

    def end(self) -> list[Call[SendRequest]]:
        self._in_flight.remove_block(self)
        self.sends_of = _no_sends  # which knows the block, and the block this
        return super().end()

    def on_outcome(self, outcome: Outcome) -> None:
        """Serve the repeats again, or close their connections if the outcome of the block's entry is unknown."""
        repeats = self.end()
        if isinstance(outcome, Unknown):
            for call in repeats:
                call.connection.close("leadership was lost while a message was being stored")
        else:
            _serve(repeats)

    def serve(self, repeats: Iterable[Call[SendRequest]]) -> None:
        """Serve the repeats that `end` returned, after the senders of the block learned that it is not stored."""
        _serve(repeats)


def _no_sends(_: str) -> list[tuple[int, int, int]]:
    return []


def _serve(calls: Iterable[Call[SendRequest]]) -> None:
    for call in calls:
        call.dispatch()


def _waiting_bytes(call: Call[SendRequest]) -> int:
    return _WAITING_BYTES + len(call.body)
