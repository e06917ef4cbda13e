"""Parses the first bytes of a connection: a header of HAProxy's protocol, TLS, or HTTP/2 without either.

The header is in "The PROXY protocol, versions 1 & 2" of haproxy.org, sections 2.1 and 2.2.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

TLS_HANDSHAKE: Final = 0x16
_SIGNATURE_1: Final = b"PROXY "
_SIGNATURE_2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_LINE_BYTES_MAX: Final = 107
_HEADER_2_BYTES: Final = 16
_LENGTH_2_MAX: Final = 2_048
_FAMILIES_2: Final = {0x1: (4, "!4s4sHH"), 0x2: (16, "!16s16sHH")}


class BadProxyHeader(Exception):
    """A header of HAProxy's protocol is malformed; the message says why."""


class Addresses(NamedTuple):
    """The addresses of the client and of the server that it connected to."""

    client: tuple[str, int]
    server: tuple[str, int]


class ProxyHeader(NamedTuple):
    """A header's length and addresses. The addresses are None for HAProxy's own connections, such as health checks."""

    nbytes: int
    addresses: Addresses | None


def may_be_proxy_header(data: bytes) -> bool:
    """Return whether the received bytes, at least one, may be the start of a header."""
    return any(data[: len(each)] == each[: len(data)] for each in (_SIGNATURE_1, _SIGNATURE_2))


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Parse the PROXY header at the start of ``data``; None if more bytes are needed. Raises BadProxyHeader."""
    if data.startswith(_SIGNATURE_2[: len(data)]):
        return _parse_2(data)
    return _parse_1(data)


def _parse_1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:_LINE_BYTES_MAX].partition(b"\r\n")
    if not end:
        if len(data) >= _LINE_BYTES_MAX:
            raise BadProxyHeader(f"its line has more than {_LINE_BYTES_MAX} bytes")
        return None
    nbytes = len(line) + len(end)
    match line.split(b" "):
        case [b"PROXY", b"UNKNOWN", *_]:
            return ProxyHeader(nbytes, None)
        case [b"PROXY", b"TCP4" | b"TCP6", source, target, source_port, target_port]:
            return ProxyHeader(nbytes, Addresses(_address_1(source, source_port), _address_1(target, target_port)))
        case _:
            raise BadProxyHeader(f"{line!r} does not name addresses")


def _address_1(host: bytes, port: bytes) -> tuple[str, int]:
    try:
        number = int(port) if port.isdigit() else -1
        address = str(ipaddress.ip_address(host.decode("ascii")))
    except ValueError as error:
        raise BadProxyHeader(f"{host!r} is not an address") from error
    if not 0 <= number <= 65_535:
        raise BadProxyHeader(f"{port!r} is not a port")
    return address, number


def _parse_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEADER_2_BYTES:
        return None
    version_command, family, length = struct.unpack_from("!BBH", data, len(_SIGNATURE_2))
    version, command = version_command >> 4, version_command & 0xF
    if version != 2 or command > 1:
        raise BadProxyHeader(f"version {version} or command {command} is unknown")
    if length > _LENGTH_2_MAX:
        raise BadProxyHeader(f"it has {length} bytes; maximum: {_LENGTH_2_MAX}")
    nbytes = _HEADER_2_BYTES + length
    if len(data) < nbytes:
        return None
    if command == 0 or family >> 4 not in _FAMILIES_2:
        return ProxyHeader(nbytes, None)
    size, layout = _FAMILIES_2[family >> 4]
    if length < 2 * size + 4:
        raise BadProxyHeader(f"its addresses have {length} bytes; minimum: {2 * size + 4}")
    source, target, source_port, target_port = struct.unpack_from(layout, data, _HEADER_2_BYTES)
    return ProxyHeader(
        nbytes,
        Addresses((str(ipaddress.ip_address(source)), source_port), (str(ipaddress.ip_address(target)), target_port)),
    )
