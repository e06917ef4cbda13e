"""Headers of HAProxy's protocol, and header blocks of HTTP/2 against Python's reference, hpack."""

from __future__ import annotations

import random
import socket
import struct

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from mq.proxy.grpc.first_bytes import Addresses, BadProxyHeader, ProxyHeader, may_be_proxy_header, parse_proxy_header
from mq.proxy.grpc.frames import PREFACE, ErrorCode, Http2Error
from mq.proxy.grpc.header_blocks import NO_TABLE, HeaderDecoder, encode_fields

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
FOUR = Addresses(("192.0.2.1", 5000), ("198.51.100.7", 8081))
SIX = Addresses(("2001:db8::1", 5000), ("2001:db8::2", 8081))


def header_2(addresses: Addresses, *, more: bytes = b"", command: int = 1) -> bytes:
    family = socket.AF_INET6 if ":" in addresses.client[0] else socket.AF_INET
    body = b"".join(socket.inet_pton(family, host) for host, _ in addresses)
    body += struct.pack("!HH", addresses.client[1], addresses.server[1]) + more
    kind = 0x21 if family == socket.AF_INET6 else 0x11
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, kind, len(body)) + body


LINE = b"PROXY TCP4 192.0.2.1 198.51.100.7 5000 8081\r\n"
LINE_6 = b"PROXY TCP6 2001:db8::1 2001:db8::2 5000 8081\r\n"


@pytest.mark.parametrize(
    ("data", "addresses"),
    [
        (LINE, FOUR),
        (LINE_6, SIX),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (header_2(FOUR), FOUR),
        (header_2(SIX), SIX),
        (header_2(FOUR, more=b"\x04\x00\x03abc"), FOUR),
        (header_2(FOUR, command=0), None),
        (SIGNATURE + b"\x21\x00\x00\x00", None),
    ],
)
def test_proxy_header_is_parsed_before_the_preface(data: bytes, addresses: Addresses | None) -> None:
    assert parse_proxy_header(data + PREFACE) == ProxyHeader(len(data), addresses)
    for nbytes in range(1, len(data)):
        assert may_be_proxy_header(data[:nbytes])
        assert parse_proxy_header(data[:nbytes]) is None, f"after {nbytes} bytes"


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.1 198.51.100.7 5000\r\n",
        b"PROXY TCP4 192.0.2.1 nowhere 5000 8081\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 5000 65536\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 -1 8081\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.7 5000 8081\r\n",
        b"PROXY " + b"x" * 120,
        SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\xff\xff",
        SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
    ],
)
def test_bad_headers_are_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parse_proxy_header(data)


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21"]))
def test_any_bytes_are_parsed_or_refused(data: bytes, begin: bytes) -> None:
    try:
        found = parse_proxy_header(begin + data)
    except BadProxyHeader:
        return
    assert found is None or found.nbytes <= len(begin + data)


def test_http2_and_tls_do_not_begin_proxy_headers() -> None:
    assert not may_be_proxy_header(PREFACE)
    assert not may_be_proxy_header(b"\x16\x03\x01")
    assert may_be_proxy_header(b"P")
    assert may_be_proxy_header(b"PR")
    assert not may_be_proxy_header(b"PRI")


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
    assert list(decoder.decode(NO_TABLE + encode_fields(*raw), raw=True)) == raw
    assert list(decoder.decode(encode_fields(*raw), raw=True)) == raw
    assert HeaderDecoder(1 << 20).decode(encode_fields(*raw)) == raw


@pytest.mark.parametrize("nbytes", [126, 127, 128, 254, 255, 256, 400, 20_000])
def test_long_values_survive_encoding(nbytes: int) -> None:
    field = (b"x-long", b"v" * nbytes)
    assert HeaderDecoder(1 << 20).decode(encode_fields(field)) == [field]
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
    assert HeaderDecoder(40).decode(encode_fields(field)) == [field]
    with pytest.raises(Http2Error) as refused:
        HeaderDecoder(39).decode(encode_fields(field))
    assert refused.value.flood


@given(st.binary(max_size=100))
def test_any_block_is_parsed_or_refused(block: bytes) -> None:
    try:
        HeaderDecoder(10_000).decode(block)
    except Http2Error:
        pass
