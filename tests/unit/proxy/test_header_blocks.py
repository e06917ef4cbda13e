"""Header blocks against hpack, the reference of Python."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from mq.proxy.grpc.frames import ErrorCode, Http2Error
from mq.proxy.grpc.header_blocks import NO_TABLE, HeaderDecoder, encoded

NAMES = [":path", ":method", "content-type", "x-a", "x-b", "user-agent"]
FIELDS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.one_of(st.sampled_from(["", "POST", "/", "v" * 200]), st.text(max_size=40))),
    max_size=12,
)


@given(blocks=st.lists(FIELDS, max_size=8), huffman=st.booleans(), sizes=st.lists(st.integers(0, 4096), max_size=3))
def test_decoder_reads_headers_encoded_by_hpack(
    blocks: list[list[tuple[str, str]]], huffman: bool, sizes: list[int]
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    for number, fields in enumerate(blocks):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode(fields, huffman=huffman)
        assert decoder.decode(block) == [(name.encode(), value.encode()) for name, value in fields]


@given(FIELDS)
def test_hpack_decodes_encoded_headers(fields: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in fields]
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    assert list(decoder.decode(NO_TABLE + encoded(*raw), raw=True)) == raw
    assert list(decoder.decode(encoded(*raw), raw=True)) == raw
    assert HeaderDecoder(1 << 20).decode(encoded(*raw)) == raw


@pytest.mark.parametrize("nbytes", [126, 127, 128, 254, 255, 256, 400, 20_000])
def test_long_values(nbytes: int) -> None:
    field = (b"x-long", b"v" * nbytes)
    assert HeaderDecoder(1 << 20).decode(encoded(field)) == [field]
    assert HeaderDecoder(1 << 20).decode(Encoder().encode([field], huffman=True)) == [field]


def test_entries_leave_the_table_as_in_the_reference() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    chance = random.Random(5)
    for _ in range(300):
        fields = [(f"x-{chance.randrange(60)}", "v" * chance.randrange(200)) for _ in range(5)]
        assert decoder.decode(encoder.encode(fields)) == [(name.encode(), value.encode()) for name, value in fields]
    assert decoder._table_bytes <= 4096


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an empty table
        b"\xff\xff\xff\xff\xff\xff\x7f",  # a number without end
        b"\x3f\xe2\x1f",  # a table of more than 4,096 bytes
        b"\x82\x20",  # another size after a field
        b"\x40\x05ab",  # a name that is cut
        b"\x00\x01a\x05ab",  # a value that is cut
        b"\x00\x01a",  # no value
        b"\x00\x81\x00\x00",  # no Huffman code
    ],
)
def test_damaged_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(Http2Error) as refused:
        HeaderDecoder(1 << 20).decode(block)
    assert refused.value.code is ErrorCode.COMPRESSION_ERROR


def test_header_fields_are_counted_by_the_http2_rule() -> None:
    field = (b"x-a", b"12345")
    assert HeaderDecoder(40).decode(encoded(field)) == [field]
    with pytest.raises(Http2Error) as refused:
        HeaderDecoder(39).decode(encoded(field))
    assert refused.value.flood


@given(st.binary(max_size=100))
def test_any_bytes_are_parsed_or_refused(block: bytes) -> None:
    try:
        HeaderDecoder(10_000).decode(block)
    except Http2Error:
        pass
