"""Headers of HAProxy's protocol."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.proxy.grpc.first_bytes import Addresses, BadProxyHeader, ProxyHeader, may_be_proxy_header, parse_proxy_header
from mq.proxy.grpc.frames import PREFACE

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
