"""The interface of WebAssembly filters without a runtime, and messages in one buffer for filters."""

from __future__ import annotations

import struct

import pytest

from mq.filter.blocks import Block, Message, block_of
from mq.filter.programs import ProgramInvalid
from mq.filter.wasm import ROOM_MIN, Signature, check_module, room_for

GOOD: dict[str, Signature | str] = {
    "memory": "memory",
    "raftmq_allocate": Signature(("i32",), ("i32",)),
    "raftmq_filter": Signature(("i32", "i32", "i32", "i32"), ("i32",)),
}


def test_module_may_export_more() -> None:
    check_module([], GOOD | {"__heap_base": "global", "helper": Signature((), ())})


@pytest.mark.parametrize(
    ("imports", "exports", "reason"),
    [
        (["wasi_snapshot_preview1.fd_write"], GOOD, "imports wasi_snapshot_preview1.fd_write"),
        ([], {**GOOD, "memory": "global"}, "no memory named 'memory'"),
        ([], {name: kind for name, kind in GOOD.items() if name != "memory"}, "no memory named 'memory'"),
        ([], {name: kind for name, kind in GOOD.items() if name != "raftmq_filter"}, "no function raftmq_filter"),
        ([], {**GOOD, "raftmq_allocate": Signature(("i64",), ("i64",))}, r"as \(i64\) -> i64, not \(i32\) -> i32"),
        ([], {**GOOD, "raftmq_filter": "table"}, "as a table"),
    ],
)
def test_invalid_input_is_refused(imports: list[str], exports: dict[str, Signature | str], reason: str) -> None:
    with pytest.raises(ProgramInvalid, match=reason):
        check_module(imports, exports)


@pytest.mark.parametrize(
    ("nbytes", "room"), [(0, ROOM_MIN), (ROOM_MIN, ROOM_MIN), (ROOM_MIN + 1, 2 * ROOM_MIN), (5_000_000, 1 << 23)]
)
def test_wasm_memory_is_requested_in_few_sizes(nbytes: int, room: int) -> None:
    assert room_for(nbytes) == room


def test_block_stores_messages_without_gaps() -> None:
    block = block_of([Message(b"ab", b"cde"), Message(b"", b"f")])
    assert block.data == b"abcdef"
    assert block.ends == [5, 6]
    assert list(struct.iter_unpack("<4I", block.encoded_places())) == [(0, 2, 2, 3), (5, 0, 5, 1)]
    assert [block.message(number) for number in range(2)] == [(b"ab", b"cde"), (b"", b"f")]


def test_as_many_messages_fit_as_their_parts_have_room() -> None:
    block = block_of([Message(b"ab", b"cde")] * 3)
    assert [block.end_within(0, room) for room in (4, 5, 9, 10, 14, 15, 100)] == [0, 1, 1, 2, 2, 3, 3]
    assert [block.end_within(2, room) for room in (4, 5, 100)] == [2, 3, 3]


def test_bytes_between_messages_belong_to_the_next_message() -> None:
    block = Block(b"..ab.cd", [(2, 1, 3, 1), (5, 1, 6, 1)], [4, 7])
    assert [block.begin_of(number) for number in range(2)] == [0, 4]
    assert block.end_within(0, 6) == 1
    assert [block.message(number) for number in range(2)] == [(b"a", b"b"), (b"c", b"d")]
