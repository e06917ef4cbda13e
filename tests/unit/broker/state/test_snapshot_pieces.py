"""Large snapshots in small pieces: the event loop goes on, and tables are captured in a moment."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state import metadata_snapshot as module
from mq.broker.state.commands import GroupConfig, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.state.nested_tables import NestedTables, Rows, in_order
from mq.protocol.numbers import QueueOffset

GROUPS = 3000


def filled() -> Metadata:
    metadata = Metadata()
    for number in range(GROUPS):
        topic, group = f"topic-{number}", f"group-{number}"
        metadata.topics[topic] = TopicConfig(name=topic, read_queues=16, write_queues=16)
        metadata.groups[group] = GroupConfig(name=group)
        metadata.consumer_offsets[group, topic] = dict.fromkeys(range(16), QueueOffset(number))
    return metadata


def test_snapshot_pieces_hold_a_few_rows_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    encoded = module._encode

    def counted(state: module.Snapshot) -> list[bytes]:
        made = list(encoded(state))
        pieces.extend(map(len, made))
        return made

    monkeypatch.setattr(module, "_encode", counted)
    whole = filled().snapshot()
    assert sum(pieces) == len(whole) > 500_000
    assert max(pieces) < 16 * 1024


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 70_000])
def test_cbor_heads_equal_those_of_the_library(count: int) -> None:
    assert module._cbor_head(module._CBOR_ARRAY, count) == cbor2.dumps([0] * count)[: -count or None]


def test_snapshot_equals_one_call_of_cbor2() -> None:
    """Replicas of older versions compare and read it."""
    whole = filled().snapshot()
    assert cbor2.dumps(cbor2.loads(whole)) == whole


def test_snapshot_restores_the_state() -> None:
    metadata, again = filled(), Metadata()
    again.restore(metadata.snapshot())
    assert again.snapshot() == metadata.snapshot()
    assert again.consumer_offsets == metadata.consumer_offsets


STEPS = st.lists(st.tuples(st.sampled_from(["put", "drop", "capture"]), st.integers(0, 2), st.integers(0, 3)))


@given(STEPS)
def test_captures_stay_unchanged(steps: list[tuple[str, int, int]]) -> None:
    tables: NestedTables[int, int, int] = NestedTables({0: {0: -1}})
    model: dict[int, dict[int, int]] = {0: {0: -1}}
    captures: list[tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]] = []
    for number, (step, outer, inner) in enumerate(steps):
        if step == "put":
            tables.to_change(outer)[inner] = number
            model.setdefault(outer, {})[inner] = number
        elif step == "drop":
            tables.pop(outer, None)
            model.pop(outer, None)
        else:
            captures.append((tables.capture(), {key: dict(table) for key, table in model.items()}))
    assert tables == model
    for captured, expected in captures:
        assert captured == expected


def test_table_is_copied_once_after_a_capture() -> None:
    tables: NestedTables[str, int, int] = NestedTables()
    first = tables.to_change("a")
    assert tables.to_change("a") is first
    tables.capture()
    second = tables.to_change("a")
    assert second is not first
    assert tables.to_change("a") is second


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(max_size=2), st.text(max_size=2), st.integers(0, 3)), unique=True))
def test_keys_come_in_their_order(keys: list[tuple[str, str, int]]) -> None:
    assert list(in_order(keys)) == sorted(keys)


def test_rows_are_made_on_access() -> None:
    made: list[int] = []

    def make(key: tuple[int]) -> int:
        made.append(key[0])
        return 10 * key[0]

    rows = Rows([(number,) for number in range(5)], make)
    assert (len(rows), made) == (5, [])
    assert (rows[1:3], rows[4], made) == ([10, 20], 40, [1, 2, 4])
