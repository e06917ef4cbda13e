"""Numbered sends in flight, singly and in blocks, against a plain list of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.net.call import Call
from mq.broker.produce.sends_in_flight import InFlightSends, NumberedBlock, NumberedSend, NumberedSends
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.messages.sequencing import SequenceRange
from tests.support.model_log import HOST
from tests.support.send_paths import Connection, frame


def call_of(connection: Any, body: bytes = b"body") -> Call[Any]:
    [(request, body, serialization)], _ = decode_chunk(frame(body))
    return Call(connection, request, body, serialization)


class InFlightModel:
    """What is in flight, as a list that is searched, and as `InFlightSends`."""

    def __init__(self) -> None:
        self.in_flight = InFlightSends()
        self.open: list[tuple[NumberedSends, list[SequenceRange]]] = []
        self.reserved = 0

    def reserve(self, nbytes: int) -> None:
        self.reserved += nbytes

    def highest(self, producer: str) -> int:
        return max((each.last for _, sends in self.open for each in sends if each.producer == producer), default=-1)

    def find_overlap(self, numbers: SequenceRange) -> tuple[NumberedSends, SequenceRange] | None:
        found = [
            (each.first, send, each)
            for send, sends in self.open
            for each in sends
            if each.producer == numbers.producer and each.first <= numbers.last and each.last >= numbers.first
        ]
        return max(found, key=lambda row: row[0])[1:] if found else None

    def send(self, numbers: SequenceRange) -> None:
        """One that is handled by itself, whatever its number."""
        if self.find_overlap(numbers) is None:
            send = NumberedSend(self.in_flight, self.reserve, numbers, (), call_of(Connection(HOST)))
            self.open.append((send, [numbers]))

    def send_block(self, given: list[tuple[str, int, int]]) -> None:
        """A block of sends, each above all others of its producer."""
        sends: list[SequenceRange] = []
        highest: dict[str, int] = {}
        for producer, gap, more in given:
            first = max(highest.get(producer, -1), self.highest(producer)) + 1 + gap
            sends.append(SequenceRange(producer, first, first + more))
            highest[producer] = first + more

        def sends_of(producer: str) -> list[tuple[int, int, int]]:
            return [(each.first, each.last, at) for at, each in enumerate(sends) if each.producer == producer]

        self.open.append((NumberedBlock(self.in_flight, self.reserve, highest, sends_of), sends))

    def end(self, at: int) -> None:
        if self.open:
            send, _ = self.open.pop(at % len(self.open))
            send.end()


PRODUCERS = st.sampled_from("pqr")
STEPS = st.one_of(
    st.tuples(st.just("send"), st.tuples(PRODUCERS, st.integers(0, 30), st.integers(0, 3))),
    st.tuples(
        st.just("block"),
        st.lists(st.tuples(PRODUCERS, st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5),
    ),
    st.tuples(st.just("end"), st.integers(0, 9) | st.just(0)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=25))
def test_sends_in_flight_agree_with_a_list_model(steps: list[tuple[str, Any]]) -> None:
    model = InFlightModel()
    for step, given_ in steps:
        if step == "send":
            producer, first, more = given_
            model.send(SequenceRange(producer, first, first + more))
        elif step == "block":
            model.send_block(given_)
        else:
            model.end(given_)
        model.in_flight.check_invariants()
        for producer in "pqr":
            assert model.in_flight.highest(producer) == model.highest(producer)
            for first in range(0, 40, 2):
                for last in (first, first + 3):
                    numbers = SequenceRange(producer, first, last)
                    found = model.in_flight.find_overlap(numbers)
                    assert (found and (found.sends, found.numbers)) == model.find_overlap(numbers)
    while model.open:
        model.end(0)
    assert model.in_flight.is_empty


def test_refused_block_leaves_the_numbers_of_earlier_ones_in_flight() -> None:
    model = InFlightModel()
    model.send_block([("p", 0, 0), ("q", 4, 0)])
    model.send_block([("p", 0, 2)])
    model.end(1)
    assert (model.in_flight.highest("p"), model.in_flight.highest("q")) == (0, 4)
    model.in_flight.check_invariants()


def test_repeats_wait_for_their_send_in_the_order_of_the_block() -> None:
    model, connection = InFlightModel(), Connection(HOST)
    model.send_block([("p", 0, 0), ("q", 0, 0), ("p", 0, 0)])
    [(send, sends)] = model.open
    for numbers, body in ((sends[2], b"third"), (sends[0], b"first"), (sends[1], b"second"), (sends[0], b"again")):
        found = model.in_flight.find_overlap(numbers)
        assert found is not None
        assert found.sends.wait(found.place, call_of(connection, body))
    model.in_flight.check_invariants()
    assert model.reserved > 4 * 1024
    assert [call.body for call in send.end()] == [b"first", b"again", b"second", b"third"]
    assert model.reserved == 0


BROKEN = {
    "p: 0 is in flight twice, sends up to 0 are": lambda model: model.send_block([("p", 0, 1)]),
    "the latest blocks of": lambda model: model.in_flight._latest.clear(),
    "is the highest number of": lambda model: model.open[0][0].highest.update(p=7),
    "a block is listed without sends of x": lambda model: model.open[0][0].highest.update(x=7),
    "17 requests wait for one send": lambda model: model.open[0][0].waiting_calls.update({0: [None] * 17}),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_invariants_name_inconsistent_tables_of_sends_in_flight(complaint: str) -> None:
    model = InFlightModel()
    model.send_block([("p", 0, 0)])
    if complaint.startswith("p: 0"):
        model.open.clear()  # so that the model begins at 0 again
    BROKEN[complaint](model)
    with pytest.raises(AssertionError, match=complaint):
        model.in_flight.check_invariants()
