"""Messages in one buffer, for filters."""

from __future__ import annotations

import struct

from mq.filter.blocks import Block, Message, block_of


def test_block_stores_messages_without_gaps() -> None:
    block = block_of([Message(b"ab", b"cde"), Message(b"", b"f")])
    assert block.data == b"abcdef"
    assert block.ends == [5, 6]
    assert list(struct.iter_unpack("<4I", block.encoded_places())) == [(0, 2, 2, 3), (5, 0, 5, 1)]
    assert [block.message(number) for number in range(2)] == [(b"ab", b"cde"), (b"", b"f")]


def test_as_many_messages_fit_as_their_parts_have_room() -> None:
    block = block_of([Message(b"ab", b"cde")] * 3)
    assert [block.fitting(0, room) for room in (4, 5, 9, 10, 14, 15, 100)] == [0, 1, 1, 2, 2, 3, 3]
    assert [block.fitting(2, room) for room in (4, 5, 100)] == [2, 3, 3]


def test_bytes_between_messages_belong_to_the_next_message() -> None:
    block = Block(b"..ab.cd", [(2, 1, 3, 1), (5, 1, 6, 1)], [4, 7])
    assert [block.begin_of(number) for number in range(2)] == [0, 4]
    assert block.fitting(0, 6) == 1
    assert [block.message(number) for number in range(2)] == [(b"a", b"b"), (b"c", b"d")]
