"""The table of sequence numbers against a plain model, its bounds, and what is shipped about it."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.limits import StateLimits
from mq.broker.state.format_level import LEVEL_OF_GENERATED_PRODUCERS, RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.broker.state.producer_sequences import ProducerSequences, SequencedRange
from mq.broker.state.table import SnapshotDamaged
from mq.protocol import properties as props
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.messages.sequencing import SEQUENCE_MAX, SequenceRange, range_properties, sent_range, stored_range
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.annotation import ANNOTATION_START, join_sequenced, split_sequenced
from mq.store.errors import AnnotationDamaged
from mq.store.sequenced import SequencedRecord, runs_of_records, scan_sequenced

HOST = encode_host("10.0.0.1", 10911)
DAY_MS = 24 * 3600 * 1000
RANGES = st.tuples(st.integers(0, 30), st.integers(0, 3)).map(lambda given: (given[0], sum(given)))
PRODUCERS = ["a", "b", "c", "d", "e", "f", "~a", "~b", "~c"]
NOTES = st.lists(st.tuples(st.sampled_from(PRODUCERS), RANGES, st.integers(-3, 9)), max_size=60)
ALL = 34


SMALL = StateLimits(
    ranges_per_producer_max=6,
    producers_max=4,
    ranges_when_crowded=3,
    generated_producers_max=2,
    generated_ranges_when_crowded=4,
)
RAISED = RaiseLevel(level=LEVEL_OF_GENERATED_PRODUCERS, timestamp_ms=1)


Places = dict[int, tuple[int | None, int]]


class Known:
    """What is known of a producer: where its numbers are, and those whose places were given up."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []
        self.given_up: set[int] = set()

    @property
    def floor(self) -> int:
        return max(self.given_up, default=-1)

    def narrow(self, count: int) -> None:
        for first, last, _ in self.ranges[: max(len(self.ranges) - count, 0)]:
            self.given_up |= set(range(first, last + 1))
        self.ranges = self.ranges[-count:]

    def find(self, first: int, last: int) -> Places | None:
        places: Places = {}
        for number in range(first, last + 1):
            if number <= self.floor:
                if not set(range(number, self.floor)) <= self.given_up:
                    return None
                places[number] = None, number - first
            for low, high, position in self.ranges:
                if low <= number <= high:
                    places[number] = position, number - low
        return places


class Part:
    """Some producers, in the order of their latest messages, and their limits."""

    def __init__(self, producers_max: int, narrow: int) -> None:
        self.known: dict[str, Known] = {}
        self._producers_max, self._narrow = producers_max, narrow
        self._ranges_max = producers_max * narrow

    @property
    def count(self) -> int:
        return sum(len(known.ranges) for known in self.known.values())

    def trim(self) -> None:
        while len(self.known) > self._producers_max:
            self.known.pop(next(iter(self.known)))
        while self.count > self._ranges_max:
            next(known for known in self.known.values() if len(known.ranges) > self._narrow).narrow(self._narrow)


class Model:
    """The same rules, slowly."""

    def __init__(self) -> None:
        self._chosen = self._generated = Part(SMALL.producers_max, SMALL.ranges_when_crowded)

    @property
    def parts(self) -> list[Part]:
        return [self._chosen] if self._chosen is self._generated else [self._chosen, self._generated]

    def separate(self) -> None:
        self._generated = Part(SMALL.generated_producers_max, SMALL.generated_ranges_when_crowded)
        for producer in [name for name in self._chosen.known if name.startswith("~")]:
            self._generated.known[producer] = self._chosen.known.pop(producer)
        self._generated.trim()

    def of(self, producer: str) -> Part:
        return self._generated if producer.startswith("~") else self._chosen

    def note(self, producer: str, first: int, last: int, position: int) -> None:
        part = self.of(producer)
        known = part.known.get(producer, Known())
        if known.find(first, last) != {}:
            return
        part.known.pop(producer, None)
        known.ranges = sorted([*known.ranges, (first, last, position)])
        known.narrow(SMALL.ranges_per_producer_max)
        part.known[producer] = known
        part.trim()

    def find(self, producer: str, first: int, last: int) -> Places | None:
        return self.of(producer).known.get(producer, Known()).find(first, last)


def places(sequences: ProducerSequences, producer: str, first: int, last: int) -> Places | None:
    found = sequences.find(SequenceRange(producer, first, last))
    if found is None:
        return None
    return {
        number: (one.position, one.skip + number - one.first)
        for one in found
        for number in range(one.first, one.last + 1)
    }


def position(sequences: ProducerSequences, producer: str, number: int) -> int | None:
    """Where the message with this number is; None if it is not stored. Raises LookupError if that is not known."""
    found = sequences.find(SequenceRange(producer, number, number))
    if not found:
        if found is None:
            raise LookupError("forgotten")
        return None
    [one] = found
    if one.position is None:
        raise LookupError("stored, and nobody knows where")
    return one.position


RUNS = st.lists(
    st.tuples(st.sampled_from(PRODUCERS), st.lists(RANGES, min_size=1, max_size=9), st.booleans(), st.integers(0, 5)),
    max_size=20,
)


@given(RUNS, st.integers(0, 20))
def test_run_of_records_changes_the_table_like_single_records(
    given: list[tuple[str, list[tuple[int, int]], bool, int]], raised_at: int
) -> None:
    by_run, one_by_one = ProducerSequences(SMALL), ProducerSequences(SMALL)
    for at, (producer, ranges, ascending, gap) in enumerate(given):
        if at == raised_at:
            by_run.reach(LEVEL_OF_GENERATED_PRODUCERS)
            one_by_one.reach(LEVEL_OF_GENERATED_PRODUCERS)
        if ascending:  # as nearly all are: above everything that is known
            low = by_run.highest(producer) + 1 + gap
            ranges = [(low + 10 * n, low + 10 * n + last - first) for n, (first, last) in enumerate(ranges)]
        records = [
            SequencedRecord(producer, first, last, PhysicalOffset(100 * at + n), at)
            for n, (first, last) in enumerate(ranges)
        ]
        for record in records:
            one_by_one.add(*record)
        for run in runs_of_records(records):
            by_run.add_run(run)
        assert by_run.capture()() == one_by_one.capture()()
        for part, other in (
            (by_run._own_ids, one_by_one._own_ids),
            (by_run._generated_ids, one_by_one._generated_ids),
        ):
            assert (part.count, list(part.wide)) == (other.count, list(other.wide))
        by_run.check_invariants()


@pytest.mark.slow
def test_sequence_table_agrees_with_a_simple_model() -> None:
    @given(NOTES, st.sets(st.integers(0, 59)), st.integers(0, 60))
    def agrees(notes: list[tuple[str, tuple[int, int], int]], snapshots: set[int], raised_at: int) -> None:
        metadata, model, now_ms = Metadata(limits=SMALL), Model(), 0
        kept: list[tuple[bytes, Callable[[], object]]] = []
        for at, (producer, (first, last), days) in enumerate(notes):
            now_ms += days * DAY_MS
            if at in snapshots:  # goes on from the snapshot, which is encoded when the table has changed
                captured = metadata.sequences.capture()
                kept.append((metadata.snapshot(), captured))
                metadata = Metadata(limits=SMALL)
                metadata.restore(kept[-1][0])
            if at == raised_at:
                metadata.apply(RAISED)
                model.separate()
            metadata.sequences.add(producer, first, last, PhysicalOffset(at), now_ms)
            model.note(producer, first, last, at)
            for name in PRODUCERS:
                for low in range(ALL):
                    for high in (low, low + 3):
                        found = places(metadata.sequences, name, low, high)
                        assert found == model.find(name, low, high)
            assert metadata.sequences.producers == sum(len(part.known) for part in model.parts)
            assert metadata.sequences.count == sum(part.count for part in model.parts)
            metadata.check_invariants()
        kept.append((metadata.snapshot(), metadata.sequences.capture()))
        for snapshot, captured in kept:
            again = Metadata(limits=SMALL)
            again.restore(snapshot)
            assert again.snapshot() == snapshot
            assert again.sequences.capture()() == captured()

    agrees()


def test_generated_producer_ids_never_evict_chosen_ids() -> None:
    metadata = Metadata(limits=SMALL)
    metadata.apply(RAISED)
    for number in range(SMALL.producers_max):
        metadata.sequences.add(f"worker-{number}", 7, 7, PhysicalOffset(number), 1)
    for number in range(100):
        for sequence in range(10):
            metadata.sequences.add(f"~{number}", sequence, sequence, PhysicalOffset(99), 2)
    metadata.check_invariants()
    assert [position(metadata.sequences, f"worker-{number}", 7) for number in range(SMALL.producers_max)] == [
        0,
        1,
        2,
        3,
    ]
    assert position(metadata.sequences, f"~{100 - SMALL.generated_producers_max - 1}", 9) is None
    assert position(metadata.sequences, f"~{100 - SMALL.generated_producers_max}", 9) == 99


def test_chosen_producer_ids_never_evict_generated_ids() -> None:
    metadata = Metadata(limits=SMALL)
    metadata.apply(RAISED)
    metadata.sequences.add("~a", 7, 7, PhysicalOffset(1), 1)
    for number in range(100):
        metadata.sequences.add(f"worker-{number}", 7, 7, PhysicalOffset(2), 2)
    assert position(metadata.sequences, "~a", 7) == 1


def test_below_its_format_level_a_group_evicts_like_older_software() -> None:
    metadata = Metadata(limits=SMALL)
    for name in ("a", "~a", "b", "~b", "~c"):
        metadata.sequences.add(name, 1, 1, PhysicalOffset(1), 1)
    before = metadata.snapshot()
    names = [row[0] for row in cbor2.loads(before)["parts"]["sequences"]]
    assert names == ["~a", "b", "~b", "~c"]
    restored = Metadata(limits=SMALL)
    restored.restore(before)
    for each in (metadata, restored):
        each.apply(RAISED)
        each.check_invariants()
        each.sequences.add("~b", 2, 2, PhysicalOffset(2), 2)
        each.sequences.add("c", 2, 2, PhysicalOffset(2), 2)
    assert metadata.snapshot() == restored.snapshot()
    names = [row[0] for row in cbor2.loads(metadata.snapshot())["parts"]["sequences"]]
    assert names == ["b", "c", "~c", "~b"]


def test_captured_sequences_do_not_change() -> None:
    sequences = ProducerSequences()
    for number in range(5):
        sequences.add("p", number, number, PhysicalOffset(100 + number), 1)
    captured = sequences.capture()
    before = ProducerSequences()
    before.restore(captured())
    sequences.add("p", 3000, 3000, PhysicalOffset(7), 2)
    sequences.add("q", 1, 4, PhysicalOffset(8), 3)
    after = ProducerSequences()
    after.restore(captured())
    assert captured() == before.capture()() == after.capture()()
    assert (position(after, "p", 3000), position(after, "q", 1)) == (None, None)
    assert position(sequences, "p", 3000) == 7


def test_sequences_per_producer_and_producers_are_bounded() -> None:
    sequences = ProducerSequences()
    for number in range(0, 6000, 2):
        sequences.add("busy", number, number, PhysicalOffset(number), 1)
    assert position(sequences, "busy", 6000 - 2048) == 6000 - 2048
    assert sequences.find(SequenceRange("busy", 6000 - 2052, 6000 - 2052)) is None
    for number in range(9_999):
        sequences.add(f"p{number}", 1, 1, PhysicalOffset(1), 1)
    assert position(sequences, "busy", 5998) == 5998
    sequences.add("one too many", 1, 1, PhysicalOffset(1), 1)
    assert position(sequences, "busy", 5998) is None
    assert (sequences.producers, sequences.count) == (10_000, 10_000)


def test_numbers_without_gaps_are_remembered_as_one_range() -> None:
    sequences, start = ProducerSequences(), 7 << 32
    for first in range(start, start + 500_000, 100):
        sequences.add("p", first, first + 99, PhysicalOffset(first), 1)
    end = start + 500_000
    assert sequences.count == 1024
    [below, *others] = sequences.find(SequenceRange("p", start, end + 9)) or []
    assert below == SequencedRange(start, end - 102_401, None, 0)
    assert others == [
        SequencedRange(first, first + 99, PhysicalOffset(first), 0) for first in range(end - 102_400, end, 100)
    ]
    assert sequences.find(SequenceRange("p", start - 1, start)) is None
    again = ProducerSequences()
    again.restore(sequences.capture()())
    assert again.find(SequenceRange("p", start + 50, start + 149)) == [SequencedRange(start + 50, start + 149, None, 0)]
    assert len(sequences.capture()()[0][3]) == 8 * 1024  # type: ignore[index] # rows


def test_range_behind_a_gap_is_known_only_down_to_the_gap() -> None:
    sequences = ProducerSequences()
    for first in (*range(0, 500, 10), *range(600, 600 + 10 * 1100, 10)):
        sequences.add("p", first, first + 9, first, 1)
    assert sequences.find(SequenceRange("p", 600, 699)) == [SequencedRange(600, 699, None, 0)]
    assert sequences.find(SequenceRange("p", 599, 600)) is None
    assert sequences.find(SequenceRange("p", 0, 9)) is None


def test_clock_years_ahead_does_not_expire_producers() -> None:
    sequences = ProducerSequences()
    for number in range(200):
        sequences.add("quiet", number, number, PhysicalOffset(number), DAY_MS)
    sequences.add("of a leader ahead", 1, 1, PhysicalOffset(200), 2000 * DAY_MS)
    sequences.add("of the next leader", 1, 1, PhysicalOffset(201), 2 * DAY_MS)
    assert [position(sequences, "quiet", number) for number in range(200)] == list(range(200))
    assert position(sequences, "of a leader ahead", 1) == 200


def test_copy_of_an_expired_message_changes_nothing() -> None:
    sequences = ProducerSequences()
    for number in range(0, 4000, 2):
        sequences.add("p", number, number, PhysicalOffset(number), 1)
    before = sequences.capture()()
    for first, last in ((4, 4), (3998, 3998), (3, 3), (3997, 3999), (1000, 5000)):
        sequences.add("p", first, last, PhysicalOffset(99_999), 5)
    assert sequences.capture()() == before


def test_table_of_an_older_version_is_read() -> None:
    old = [["p", 4, 1_700, (7).to_bytes(8, "little") + (9).to_bytes(8, "little"), bytes(8) + b"\x01" + bytes(7)]]
    sequences = ProducerSequences()
    sequences.restore(old)
    assert (position(sequences, "p", 7), position(sequences, "p", 9), position(sequences, "p", 8)) == (0, 1, None)
    assert sequences.find(SequenceRange("p", 4, 4)) is None
    again = ProducerSequences()
    again.restore(sequences.capture()())
    assert again.capture()() == sequences.capture()()


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
        [["p", -1, 0, bytes(8), bytes(8), bytes(8), 0]],
        [["p", -1, 0, bytes(8), bytes(8), bytes(4), 1]],
        [["p", -1, 0, bytes(8), bytes(8), bytes(4), -1]],
        [["p", -1, 0, bytes(8) + b"\x01" + bytes(7), bytes(16), b"\x01" + bytes(7), 0]],
        [["p", -1, 0, b"\xff" * 7 + b"\x7f", bytes(8), b"\x01" + bytes(3), 0]],
        [["p", -1, 0, bytes(8), bytes(8), bytes(4)]],
        "nonsense",
    ],
)
def test_damaged_snapshot_is_refused_and_changes_nothing(rows: object) -> None:
    metadata = Metadata()
    metadata.sequences.add("p", 1, 1, PhysicalOffset(2), 3)
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
def test_only_valid_sequence_numbers_are_parsed(producer: str, number: str, found: tuple[str, int] | None) -> None:
    properties = {props.PRODUCER_ID: producer, props.SEQUENCE: number}
    expected = found and SequenceRange(*found, found[1])
    assert sent_range(properties) == stored_range(properties) == expected


@pytest.mark.parametrize(
    ("text", "last"), [("5-9", 9), ("5-5", None), ("5-4", None), ("5-", None), ("-5", None), ("5-6-7", None)]
)
def test_only_valid_sequence_ranges_are_parsed(text: str, last: int | None) -> None:
    properties = {props.PRODUCER_ID: "p", props.SEQUENCE: text}
    assert sent_range(properties) is None  # nobody may send what only the broker writes
    expected = None if last is None else SequenceRange("p", 5, last)
    assert stored_range(properties) == expected
    assert expected is None or range_properties(expected) == properties


def test_batch_beyond_the_highest_number_is_refused() -> None:
    properties = {props.PRODUCER_ID: "p", props.SEQUENCE: str(SEQUENCE_MAX - 1)}
    assert sent_range(properties, 2) == SequenceRange("p", SEQUENCE_MAX - 1, SEQUENCE_MAX)
    assert sent_range(properties, 3) is None


NUMBERS = st.tuples(st.integers(0, SEQUENCE_MAX), st.just(0) | st.integers(0, 2000)).map(
    lambda given: (given[0], min(sum(given), SEQUENCE_MAX))
)
ROWS = st.lists(
    st.builds(
        lambda producer, numbers, position, store_ms: SequencedRecord(
            producer, numbers[0], numbers[1], position, store_ms
        ),
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=64),
        NUMBERS,
        st.integers(0, SEQUENCE_MAX),
        st.integers(0, SEQUENCE_MAX),
    ),
    max_size=5,
)


@given(ROWS, st.binary(max_size=20), st.data())
def test_truncated_annotation_of_a_leader_is_refused(
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
def test_sequence_numbers_in_records_equal_the_annotation(rows: list[SequencedRecord]) -> None:
    body, position, expected = b"", 4096, []
    for row in rows:
        given_text = props.encode(range_properties(SequenceRange(row.producer, row.first, row.last)))
        for text in ("TAGS\x01t\x02", given_text, "XRAFTMQ_SEQUENCE\x011\x02"):
            record = encode_record(
                topic="T",
                queue_id=0,
                body=b"RAFTMQ_PRODUCER\x01p\x02RAFTMQ_SEQUENCE\x011\x02",
                properties=text,
                queue_offset=QueueOffset(0),
                physical_offset=PhysicalOffset(position),
                born_timestamp_ms=1,
                born_host=HOST,
                store_timestamp_ms=row.store_ms,
                store_host=HOST,
            )
            if text == given_text:
                expected.append(row._replace(physical_offset=PhysicalOffset(position)))
            body += record
            position += len(record)
    assert scan_sequenced(body) == expected
