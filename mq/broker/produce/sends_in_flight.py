"""Numbered sends in flight: their numbers, and the repeats that wait for the outcome.

Theory of operation. A *flight* is some sends of one producer whose outcome will be known together. `InFlightSend` is a
flight of a single send, and stands for the connection of its sender. `BlockNumbers` has the flights of a block of plain
sends, one for each producer: such a send has a number above all that are stored or in flight, so it is certainly new,
and the block is the one to learn the outcome.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.state.producer_sequences import Stored
from mq.broker.write_path.outcome import Outcome, Unknown
from mq.broker.write_path.pending import SendRequest
from mq.protocol.messages.sequencing import SequenceRange
from mq.protocol.wire.encoding import ONEWAY_FLAG

WAITING_MAX: Final = 16
"""Repeats that wait for the outcome of one message."""
_WAITING_BYTES: Final = 1024
"""Memory of a waiting request without its body; counts towards the pending bytes."""

Reserve = Callable[[int], None]
"""Counts this many bytes as pending; fewer than 0 are not pending any more."""


class Flight:
    """Sends of one producer in flight.

    Attributes:
        producer: the producer id.
        firsts, lasts: the first and the last number of each send, ascending.
        waiting: repeats, by the first number of the send that they wait for.
    """

    __slots__ = ("_flights", "_reserve", "firsts", "lasts", "producer", "waiting")

    def __init__(self, flights: InFlightSends, reserve: Reserve, producer: str) -> None:
        self._flights = flights
        self._reserve = reserve
        self.producer = producer
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.waiting: dict[int, list[Call[SendRequest]]] = {}

    def wait(self, first: int, call: Call[SendRequest]) -> bool:
        """Let a repeat wait for the outcome of the send that begins with this number; false if too many do."""
        assert first in self.firsts, f"{first} of {self.producer} is not in this flight"
        waiting = self.waiting.setdefault(first, [])
        if len(waiting) >= WAITING_MAX:
            return False
        waiting.append(call)
        self._reserve(_waiting_bytes(call))
        return True

    def end(self) -> dict[int, list[Call[SendRequest]]]:
        """The outcome is known; returns the requests that waited for it, as `waiting`."""
        self._flights.remove(self)
        waiting = self.waiting
        if waiting:
            self.waiting = {}
            self._reserve(-sum(_waiting_bytes(call) for calls in waiting.values() for call in calls))
        return waiting


class _OfProducer(NamedTuple):
    """The sends of one producer in flight, in the order of their numbers, which do not overlap."""

    firsts: list[int]
    lasts: list[int]
    flights: list[Flight]


class InFlight(NamedTuple):
    """A send in flight: its flight and its first number."""

    flight: Flight
    first: int


class InFlightSends:
    """All numbered sends in flight."""

    def __init__(self) -> None:
        self._known: dict[str, _OfProducer] = {}

    def overlapping(self, numbers: SequenceRange) -> InFlight | None:
        """A send that contains some of these numbers; None if there is none."""
        known = self._known.get(numbers.producer)
        if known is None:
            return None
        at = bisect_right(known.firsts, numbers.last) - 1
        return InFlight(known.flights[at], known.firsts[at]) if at >= 0 and known.lasts[at] >= numbers.first else None

    def highest(self, producer: str) -> int:
        """The highest number of this producer in flight; -1 without any."""
        known = self._known.get(producer)
        return -1 if known is None else known.lasts[-1]

    def add(self, flight: Flight) -> None:
        """Add a flight that overlaps no other one: of one send, or with numbers above all others."""
        firsts, lasts = flight.firsts, flight.lasts
        known = self._known.get(flight.producer)
        if known is None:
            self._known[flight.producer] = _OfProducer(firsts[:], lasts[:], [flight] * len(firsts))
            return
        at = bisect_left(known.firsts, firsts[0])
        assert not at or known.lasts[at - 1] < firsts[0], f"{firsts[0]} of {flight.producer} is in flight already"
        assert at == len(known.firsts) or (len(firsts) == 1 and lasts[0] < known.firsts[at]), (
            f"{firsts[0]} to {lasts[-1]} of {flight.producer} overlap {known.firsts[at]}"
        )
        known.firsts[at:at] = firsts
        known.lasts[at:at] = lasts
        known.flights[at:at] = [flight] * len(firsts)

    def remove(self, flight: Flight) -> None:
        """Remove it if it is there."""
        known = self._known.get(flight.producer)
        if known is None or not flight.firsts:
            return
        count = len(flight.firsts)
        if known.flights[0] is flight and len(known.flights) == count:
            del self._known[flight.producer]
            return
        at = bisect_left(known.firsts, flight.firsts[0])
        if at == len(known.firsts) or known.flights[at] is not flight:
            return
        if known.firsts[at + count - 1 : at + count] == flight.firsts[-1:]:  # nothing between its sends
            del known.firsts[at : at + count], known.lasts[at : at + count], known.flights[at : at + count]
        else:
            others = [each is not flight for each in known.flights]
            known.firsts[:] = compress(known.firsts, others)
            known.lasts[:] = compress(known.lasts, others)
            known.flights[:] = compress(known.flights, others)
        if not known.firsts:
            del self._known[flight.producer]

    @property
    def producers(self) -> int:
        """How many producers have sends in flight."""
        return len(self._known)

    def check_invariants(self) -> None:
        """Assert that the sends of each producer are in order, and that few requests wait for one; for tests."""
        for producer, known in self._known.items():
            assert known.firsts, f"producer {producer} is listed without sends in flight"
            sizes = [len(column) for column in known]
            assert len(set(sizes)) == 1, f"{producer}: {sizes} first numbers, last numbers and flights"
            for (_, last), (first, _) in pairwise(zip(known.firsts, known.lasts, strict=True)):
                assert last < first, f"{producer}: {first} is in flight twice, sends up to {last} are"
            most = max(len(calls) for flight in known.flights for calls in (*flight.waiting.values(), ()))
            assert most <= WAITING_MAX, f"{most} requests wait for one send of {producer}; maximum: {WAITING_MAX}"


class InFlightSend(Flight):
    """The sender of messages in flight: forwards the outcome to the original sender and to those of repeats.

    Attributes:
        numbers: of all messages of the send.
        stored: those that were stored before; the others are in flight.
        call: the first request, changed to want an answer and to have this sender.
    """

    __slots__ = ("_first", "call", "host", "numbers", "stored")

    def __init__(
        self,
        flights: InFlightSends,
        reserve: Reserve,
        numbers: SequenceRange,
        stored: Sequence[Stored],
        first: Call[SendRequest],
    ) -> None:
        super().__init__(flights, reserve, numbers.producer)
        self.firsts.append(numbers.first)
        self.lasts.append(numbers.last)
        self._first = first
        self.numbers = numbers
        self.stored = stored
        request = first.request
        self.host = first.connection.host
        oneway = request.flag & ONEWAY_FLAG
        answered = msgspec.structs.replace(request, flag=request.flag & ~ONEWAY_FLAG) if oneway else request
        self.call = Call(cast("ClientConnection", self), answered, first.body, first.serialization)
        flights.add(self)

    def send(self, data: bytes) -> None:
        """The outcome is known; ``data`` is the answer."""
        waiting = self._ended()
        self._first.answer(data)
        _serve(waiting)

    def answer(self, request: Any, reply: bytes) -> None:
        """As `send`, which checks whether the client wants an answer."""
        self.send(reply)

    def close(self, reason: str) -> None:
        """The outcome is unknown."""
        for call in (self._first, *self._ended()):
            call.connection.close(reason)

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        """The message was certainly not stored: the current leader serves the request."""
        _serve([self._first, *self._ended()])

    def _ended(self) -> list[Call[SendRequest]]:
        return [call for calls in self.end().values() for call in calls]


class RunInFlight(Flight):
    """The sends of one producer in a block.

    Attributes:
        last: the highest number that is known to be stored or in flight, or is in the block.
        turns: where each send is among the requests of the block.
    """

    __slots__ = ("last", "turns")

    def __init__(self, flights: InFlightSends, reserve: Reserve, producer: str, last: int) -> None:
        super().__init__(flights, reserve, producer)
        self.last = last
        self.turns: list[int] = []

    def add(self, first: int, last: int, turn: int) -> None:
        """Add a send, above all others."""
        assert self.last < first <= last, f"{first} to {last} of {self.producer} are added above {self.last}"
        self.firsts.append(first)
        self.lasts.append(last)
        self.turns.append(turn)
        self.last = last

    def begin(self) -> None:
        """They are in flight from now on."""
        count = len(self.firsts)
        assert count == len(self.lasts) == len(self.turns), f"{count} sends of {self.producer} are no rows"
        self._flights.add(self)


class BlockNumbers:
    """The numbered sends of a block, which is being filled and then in flight."""

    __slots__ = ("_open_run", "_runs")

    def __init__(self, open_run: Callable[[str], RunInFlight]) -> None:
        self._open_run = open_run
        self._runs: dict[str, RunInFlight] = {}

    def run_of(self, producer: str) -> RunInFlight:
        """The run of this producer: a send may be added if its first number is above `RunInFlight.last`."""
        run = self._runs.get(producer)
        if run is None:
            run = self._runs[producer] = self._open_run(producer)
        return run

    def begin(self) -> None:
        """The block is full: its sends are in flight from now on."""
        for run in self._runs.values():
            if run.firsts:
                run.begin()

    def end(self) -> list[Call[SendRequest]]:
        """The outcome is known; returns the requests that waited for it, in the order of the sends."""
        waiting: list[tuple[int, Call[SendRequest]]] = []
        for run in self._runs.values():
            for first, calls in run.end().items():
                at = bisect_left(run.firsts, first)
                assert run.firsts[at] == first, f"{len(calls)} requests waited for {first} of {run.producer}"
                turn = run.turns[at]
                waiting += [(turn, call) for call in calls]
        waiting.sort(key=itemgetter(0))
        return [call for _, call in waiting]

    def on_outcome(self, outcome: Outcome) -> None:
        """The outcome of the block's entry. Those who waited are served again, or do not know it either."""
        waiting = self.end()
        if isinstance(outcome, Unknown):
            for call in waiting:
                call.connection.close("leadership was lost while a message was being stored")
        else:
            _serve(waiting)

    def serve(self, waiting: Iterable[Call[SendRequest]]) -> None:
        """Serve what `end` has returned: the block is not stored, and its senders know."""
        _serve(waiting)


def _serve(waiting: Iterable[Call[SendRequest]]) -> None:
    for call in waiting:
        call.dispatch()


def _waiting_bytes(call: Call[SendRequest]) -> int:
    return _WAITING_BYTES + len(call.body)
