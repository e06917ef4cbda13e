"""The table of sequence numbers against a plain model, its bounds, and what is shipped about it."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state import sequences as table
from mq.broker.state.metadata import Metadata
from mq.broker.state.parts import SnapshotDamaged
from mq.broker.state.sequences import NotFound, Sequences
from mq.protocol import properties as props
from mq.protocol.records import encode_host, encode_record
from mq.protocol.sequencing import SEQUENCE_MAX, SequenceId, sequence_id
from mq.store.dispatch import ANNOTATION_START
from mq.store.errors import AnnotationDamaged
from mq.store.sequenced import SequencedRecord, join_sequenced, scan_sequenced, split_sequenced

HOST = encode_host("10.0.0.1", 10911)
DAY_MS = 24 * 3600 * 1000
NOTES = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 30), st.integers(-3, 9)), max_size=60)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WINDOW", 6)
    monkeypatch.setattr(table, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(table, "MESSAGES_MAX", 12)
    monkeypatch.setattr(table, "NARROW", 3)


class Model:
    """The same rules, slowly: for each producer a floor, a time and a dict."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, int, dict[int, int]]] = {}

    def note(self, producer: str, number: int, position: int, now_ms: int) -> None:
        floor, _, places = self.known.get(producer, (-1, 0, {}))
        if number <= floor or number in places:
            return
        self.known.pop(producer, None)
        places[number] = position
        self.known[producer] = self.narrowed(floor, now_ms, places, table.WINDOW)
        while len(self.known) > table.PRODUCERS_MAX:
            self.known.pop(next(iter(self.known)))
        while sum(len(places) for _, _, places in self.known.values()) > table.MESSAGES_MAX:
            name = next(name for name, row in self.known.items() if len(row[2]) > table.NARROW)
            self.known[name] = self.narrowed(*self.known[name], table.NARROW)

    @staticmethod
    def narrowed(floor: int, now_ms: int, places: dict[int, int], count: int) -> tuple[int, int, dict[int, int]]:
        kept = sorted(places)[-count:]
        dropped = [number for number in places if number not in kept]
        return max([floor, *dropped]), now_ms, {number: places[number] for number in kept}

    def find(self, producer: str, number: int) -> int | NotFound:
        floor, _, places = self.known.get(producer, (-1, 0, {}))
        return NotFound.FORGOTTEN if number <= floor else places.get(number, NotFound.NEW)


@pytest.mark.usefixtures("small")
def test_the_table_agrees_with_a_plain_one() -> None:
    @given(NOTES, st.sets(st.integers(0, 59)))
    def agrees(notes: list[tuple[str, int, int]], snapshots: set[int]) -> None:
        metadata, model, now_ms = Metadata(), Model(), 0
        kept: list[tuple[bytes, Callable[[], object]]] = []
        for position, (producer, number, days) in enumerate(notes):
            now_ms += days * DAY_MS
            if position in snapshots:  # goes on from the snapshot, which is encoded when the table has changed
                captured = metadata.sequences.capture()
                kept.append((metadata.snapshot(), captured))
                metadata = Metadata()
                metadata.restore(kept[-1][0])
            metadata.sequences.note(producer, number, position, now_ms)
            model.note(producer, number, position, now_ms)
            for name in "abcdef":
                for wanted in range(31):
                    assert metadata.sequences.find(name, wanted) == model.find(name, wanted)
            assert metadata.sequences.producers == len(model.known) <= table.PRODUCERS_MAX
            places = sum(len(places) for _, _, places in model.known.values())
            assert metadata.sequences.count == places <= table.MESSAGES_MAX
        kept.append((metadata.snapshot(), metadata.sequences.capture()))
        for snapshot, captured in kept:
            again = Metadata()
            again.restore(snapshot)
            assert again.snapshot() == snapshot
            assert again.sequences.capture()() == captured()

    agrees()


def test_what_was_captured_does_not_change_any_more() -> None:
    sequences = Sequences()
    for number in range(5):
        sequences.note("p", number, 100 + number, 1)
    captured = sequences.capture()
    before = Sequences()
    before.restore(captured())
    sequences.note("p", 3000, 7, 2)
    sequences.note("q", 1, 8, 3)
    after = Sequences()
    after.restore(captured())
    assert captured() == before.capture()() == after.capture()()
    assert (after.find("p", 3000), after.find("q", 1)) == (NotFound.NEW, NotFound.NEW)
    assert sequences.find("p", 3000) == 7


def test_the_bounds_as_they_are() -> None:
    sequences = Sequences()
    for number in range(3000):
        sequences.note("busy", number, number, 1)
    assert sequences.find("busy", 3000 - 1024) == 3000 - 1024
    assert sequences.find("busy", 3000 - 1025) is NotFound.FORGOTTEN
    for number in range(9_999):
        sequences.note(f"p{number}", 1, 1, 1)
    assert sequences.find("busy", 2999) == 2999
    sequences.note("one too many", 1, 1, 1)
    assert sequences.find("busy", 2999) is NotFound.NEW
    assert (sequences.producers, sequences.count) == (10_000, 10_000)


def test_a_clock_that_is_years_ahead_makes_nobody_forgotten() -> None:
    sequences = Sequences()
    for number in range(200):
        sequences.note("quiet", number, number, DAY_MS)
    sequences.note("of a leader ahead", 1, 200, 2000 * DAY_MS)
    sequences.note("of the next leader", 1, 201, 2 * DAY_MS)
    assert [sequences.find("quiet", number) for number in range(200)] == list(range(200))
    assert sequences.find("of a leader ahead", 1) == 200


def test_a_copy_of_a_forgotten_message_changes_nothing() -> None:
    sequences = Sequences()
    for number in range(2000):
        sequences.note("p", number, number, 1)
    before = sequences.capture()()
    sequences.note("p", 3, 99_999, 5)
    sequences.note("p", 1999, 99_999, 5)
    assert sequences.capture()() == before


@pytest.mark.parametrize(
    "rows",
    [
        [["p", -1, 0, b"", b""]],
        [["p", -1, 0, b"x" * 8, b"x" * 16]],
        [["p", -1, 0, b"x" * 7, b"x" * 7]],
        [["p", -2, 0, bytes(8), bytes(8)]],
        [["p", 0, 0, bytes(8), bytes(8)]],
        [["p", -1, 0, bytes(16), bytes(16)]],
        [["", -1, 0, bytes(8), bytes(8)]],
        [["p", -1, 0, bytes(8), bytes(8)]] * 2,
        "nonsense",
    ],
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(rows: object) -> None:
    metadata = Metadata()
    metadata.sequences.note("p", 1, 2, 3)
    before = metadata.snapshot()
    with pytest.raises(SnapshotDamaged):
        metadata.restore(cbor2.dumps(cbor2.loads(before) | {"parts": {"sequences": rows}}))
    assert metadata.snapshot() == before


@pytest.mark.parametrize(
    ("producer", "number", "found"),
    [
        ("p", "0", ("p", 0)),
        ("ü" * 64, "007", ("ü" * 64, 7)),
        ("p", str(SEQUENCE_MAX), ("p", SEQUENCE_MAX)),
        ("p", str(SEQUENCE_MAX + 1), None),
        ("p" * 65, "1", None),
        ("", "1", None),
        ("p", "", None),
        ("p", "-1", None),
        ("p", "+1", None),
        ("p", " 1", None),
        ("p", "1_0", None),
        ("p", "٣", None),
        ("p", "0" * 20, None),
    ],
)
def test_which_sequence_numbers_there_are(producer: str, number: str, found: SequenceId | None) -> None:
    assert sequence_id({props.PRODUCER_ID: producer, props.SEQUENCE: number}) == found


ROWS = st.lists(
    st.builds(
        SequencedRecord,
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=64),
        st.integers(0, SEQUENCE_MAX),
        st.integers(0, SEQUENCE_MAX),
        st.integers(0, SEQUENCE_MAX),
    ),
    max_size=5,
)


@given(ROWS, st.binary(max_size=20), st.data())
def test_what_is_shipped_is_read_as_it_was_and_no_byte_less(
    rows: list[SequencedRecord], runs: bytes, data: st.DataObject
) -> None:
    annotation = join_sequenced(rows, ANNOTATION_START + runs)
    assert split_sequenced(annotation) == (rows, ANNOTATION_START + runs)
    cut = data.draw(st.integers(0, len(annotation) - len(runs) - 1))
    with pytest.raises(AnnotationDamaged):
        split_sequenced(annotation[:cut])
    with pytest.raises(AnnotationDamaged):
        split_sequenced(b"\x01" + annotation[1:])


@given(ROWS)
def test_records_say_what_is_shipped_about_them(rows: list[SequencedRecord]) -> None:
    body, position, expected = b"", 4096, []
    for row in rows:
        given_text = props.encode({props.PRODUCER_ID: row.producer, props.SEQUENCE: str(row.number)})
        for text in ("TAGS\x01t\x02", given_text, "XRAFTMQ_SEQUENCE\x011\x02"):
            record = encode_record(
                topic="T",
                queue_id=0,
                body=b"RAFTMQ_PRODUCER\x01p\x02RAFTMQ_SEQUENCE\x011\x02",
                properties=text,
                queue_offset=0,
                physical_offset=position,
                born_timestamp_ms=1,
                born_host=HOST,
                store_timestamp_ms=row.store_ms,
                store_host=HOST,
            )
            if text == given_text:
                expected.append(row._replace(physical_offset=position))
            body += record
            position += len(record)
    assert scan_sequenced(body) == expected
