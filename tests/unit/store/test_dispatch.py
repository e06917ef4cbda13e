"""What a log entry adds to queues: shipped by the leader, or scanned from the records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.hashes import tag_code
from mq.protocol.messages.records import RecordError, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.annotation import ANNOTATION_START, Span, decode_runs, encode_runs, join_commands, split_commands
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QueueRun, RunBuilder, check_entry, enters_queue, scan_runs
from mq.store.errors import AnnotationDamaged, RunInvalid

HOST = encode_host("10.0.0.1", 10911)
HOST_V6 = encode_host("2001:db8::1", 10911)


class EntryBuilder:
    """Lays out the body of a log entry as a leader does: records, their runs, and the commands among them."""

    def __init__(self, position: int = 48) -> None:
        self.begin = self.position = position
        self.parts: list[bytes] = []
        self.builder = RunBuilder()
        self.commands: list[bytes] = []
        self.next_offset: dict[tuple[str, int], int] = {}

    def add(
        self, topic: str, queue_id: int = 0, body: bytes = b"x", tags: str = "", sys_flag: int = 0, host: bytes = HOST
    ) -> None:
        visible = topic != META_TOPIC and enters_queue(sys_flag)
        offset = self.next_offset.get((topic, queue_id), 0) if visible else 0
        record = encode_record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=f"KEYS\x01k\x02TAGS\x01{tags}\x02WAIT\x01true" if tags else "",
            queue_offset=QueueOffset(offset),
            physical_offset=PhysicalOffset(self.position),
            born_timestamp_ms=1,
            born_host=host,
            store_timestamp_ms=2,
            store_host=HOST,
            sys_flag=sys_flag,
        )
        if topic == META_TOPIC:
            self.commands.append(body)
        elif visible:
            self.next_offset[topic, queue_id] = offset + 1
            self.builder.add(
                topic,
                queue_id,
                QueueOffset(offset),
                PhysicalOffset(self.position),
                len(record),
                tag_code(tags) if tags else 0,
            )
        self.parts.append(record)
        self.position += len(record)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


def test_scan_of_one_message_returns_one_run() -> None:
    entry = EntryBuilder(position=1000)
    entry.add("T", 3, b"hello", tags="A")
    runs, commands = scan_runs(entry.body, PhysicalOffset(entry.begin))
    assert runs == [QueueRun("T", 3, QueueOffset(0), QUEUE_ENTRY.pack(1000, len(entry.body), ord("A")))]
    assert commands == []
    assert runs[0].end_offset == 1


def test_messages_of_several_queues_make_one_run_each() -> None:
    entry = EntryBuilder()
    for topic, queue_id in (("T", 0), ("U", 0), ("T", 0), ("T", 1), ("U", 0), ("T", 0)):
        entry.add(topic, queue_id)
    runs, _ = scan_runs(entry.body, PhysicalOffset(entry.begin))
    assert [(run.topic, run.queue_id, len(run.entries) // 20) for run in runs] == [
        ("T", 0, 3),
        ("U", 0, 2),
        ("T", 1, 1),
    ]


@pytest.mark.parametrize(
    ("sys_flag", "visible"), [(0, True), (1, True), (4, False), (8, True), (12, False), (5, False), (0x301, True)]
)
def test_half_and_rolled_back_messages_enter_no_queue(sys_flag: int, visible: bool) -> None:
    entry = EntryBuilder()
    entry.add("T", sys_flag=sys_flag)
    entry.add("T")
    runs, _ = scan_runs(entry.body, PhysicalOffset(entry.begin))
    assert len(runs[0].entries) == (40 if visible else 20)


def test_commands_come_out_in_order_and_enter_no_queue() -> None:
    entry = EntryBuilder()
    for number, topic in enumerate((META_TOPIC, "T", META_TOPIC, META_TOPIC, "T")):
        entry.add(topic, body=b"command %d" % number)
    runs, commands = scan_runs(entry.body, PhysicalOffset(entry.begin))
    assert commands == [b"command 0", b"command 2", b"command 3"]
    assert [run.topic for run in runs] == ["T"]


def test_empty_entry_adds_nothing() -> None:
    assert scan_runs(b"", PhysicalOffset(48)) == ([], [])


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_body_that_is_not_a_chain_of_records_is_damage(cut: int) -> None:
    entry = EntryBuilder()
    entry.add("T")
    entry.add("T")
    with pytest.raises(RecordError):
        scan_runs(entry.body[:-cut], PhysicalOffset(entry.begin))


def test_record_with_another_position_is_damaged() -> None:
    entry = EntryBuilder()
    entry.add("T")
    entry.add(META_TOPIC)
    body = bytearray(entry.body)
    body[len(entry.parts[0]) + 35] ^= 1  # the last byte of where the command says it is
    for bad, begin in ((entry.body, 49), (bytes(body), 48)):
        with pytest.raises(RecordError, match="it lies at"):
            scan_runs(bad, PhysicalOffset(begin))
        with pytest.raises(ValueError, match="it lies at"):
            check_entry(memoryview(bad), begin)
    check_entry(memoryview(entry.body), 48)


def test_gap_within_an_entry_is_refused() -> None:
    builder = RunBuilder()
    builder.add("T", 0, QueueOffset(5), PhysicalOffset(100), 100, 0)
    with pytest.raises(RunInvalid, match="T/0: offset 7 follows 5 in one entry"):
        builder.add("T", 0, QueueOffset(7), PhysicalOffset(200), 100, 0)


@pytest.mark.parametrize("turn_ms", [2**63, -(2**63) - 1])
def test_turn_that_does_not_fit_a_queue_is_refused(turn_ms: int) -> None:
    with pytest.raises(RunInvalid, match=f"tag code {turn_ms}"):
        RunBuilder().add("T", 0, QueueOffset(5), PhysicalOffset(100), 100, turn_ms)


def test_annotation_of_no_runs_is_not_empty() -> None:
    annotation = encode_runs([])
    assert annotation != b""
    assert decode_runs(annotation) == []


def test_annotation_layout_is_unchanged() -> None:
    run = QueueRun("T", 3, QueueOffset(9), QUEUE_ENTRY.pack(48, 100, 65))
    assert encode_runs([run]).hex() == (
        "010100000003000000000000000900000001540000000000000030000000640000000000000041"
    )


@pytest.mark.parametrize("annotation", [b"", b"\x00", b"\x02"])
def test_annotation_of_another_format_is_damage(annotation: bytes) -> None:
    with pytest.raises(AnnotationDamaged):
        decode_runs(annotation)


def test_annotation_cut_anywhere_is_damage_or_its_first_runs() -> None:
    runs = [QueueRun("T", 0, QueueOffset(9), bytes(range(40))), QueueRun("Uü", 1, QueueOffset(2**40), bytes(range(20)))]
    annotation = encode_runs(runs)
    whole = {1: 0, len(encode_runs(runs[:1])): 1, len(annotation): 2}
    for size in range(len(annotation) + 1):
        if size in whole:
            assert decode_runs(annotation[:size]) == runs[: whole[size]]
        else:
            with pytest.raises(AnnotationDamaged):
                decode_runs(annotation[:size])


@given(annotation=st.binary(max_size=80))
def test_any_annotation_is_read_or_refused(annotation: bytes) -> None:
    try:
        runs = decode_runs(b"\x01" + annotation)
    except AnnotationDamaged:
        return
    assert encode_runs(runs) == b"\x01" + annotation


_messages: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    topic=st.sampled_from(["T", "%RETRY%g", META_TOPIC, "x" * 200]),
    queue_id=st.integers(0, 3),
    body=st.binary(max_size=30),
    tags=st.sampled_from(["", "A", "tag-b", "ü", "x" * 200]),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12]),
    host=st.sampled_from([HOST, HOST_V6]),
)


@given(messages=st.lists(_messages, max_size=20), position=st.integers(0, 2**40))
def test_shipped_runs_equal_scanned_runs(messages: list[dict[str, Any]], position: int) -> None:
    entry = EntryBuilder(position)
    for message in messages:
        entry.add(**message)
    shipped = decode_runs(encode_runs(entry.builder.runs()))
    scanned, commands = scan_runs(memoryview(entry.body), PhysicalOffset(position))
    assert shipped == scanned
    assert commands == entry.commands


BODY = bytes(range(200))
SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5)


@given(SPANS, st.binary(max_size=20))
def test_commands_cut_by_annotation_equal_those_of_the_entry(spans: list[Span], runs: bytes) -> None:
    annotation = join_commands(spans, ANNOTATION_START + runs)
    expected = [BODY[start : start + nbytes] for start, nbytes in spans]
    assert split_commands(annotation, BODY) == (expected, ANNOTATION_START + runs)
    assert split_commands(annotation, memoryview(BODY)) == (expected, ANNOTATION_START + runs)


@given(SPANS, st.data())
def test_truncated_annotation_is_refused(spans: list[Span], data: st.DataObject) -> None:
    annotation = join_commands(spans, ANNOTATION_START)
    with pytest.raises(AnnotationDamaged):
        split_commands(annotation[: data.draw(st.integers(0, len(annotation) - 1))], BODY)


@pytest.mark.parametrize("span", [(0, 201), (201, 0), (150, 51), (2**32 - 1, 2**32 - 1)])
def test_command_beyond_the_entry_is_refused(span: Span) -> None:
    with pytest.raises(AnnotationDamaged, match="of 200"):
        split_commands(join_commands([span], ANNOTATION_START), BODY)


@pytest.mark.parametrize("annotation", [ANNOTATION_START, b"\x02\0\0\0\0\x01", b"\x03\0\0\0\0\x01"])
def test_annotation_without_commands_is_refused(annotation: bytes) -> None:
    with pytest.raises(AnnotationDamaged):
        split_commands(annotation, BODY)
