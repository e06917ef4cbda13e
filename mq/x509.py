"""Parses when a certificate is valid, since the standard library does not tell a server that of its certificate."""

from __future__ import annotations

import datetime as dt
import enum
from typing import NamedTuple


class _Tag(enum.IntEnum):
    UTC_TIME = 0x17
    GENERALIZED_TIME = 0x18
    SEQUENCE = 0x30
    VERSION = 0xA0


class Validity(NamedTuple):
    """The period in which a certificate is valid, in UTC, and whether the certificate names itself as its authority."""

    begins: dt.datetime
    ends: dt.datetime
    is_root: bool


def validity(certificate: bytes) -> Validity:
    """Parse when a certificate (DER, RFC 5280) is valid. Raises ValueError if it is malformed."""
    try:
        _, content = _element(_element(certificate)[1])[:2]
        if content[0] == _Tag.VERSION:
            content = _element(content)[2]
        for _ in ("serial number", "signature algorithm"):
            content = _element(content)[2]
        _, issuer, content = _element(content)
        tag, times, content = _element(content)
        if tag != _Tag.SEQUENCE:
            raise ValueError(f"the validity has the unknown tag {tag:#x}")
        first, begins, times = _element(times)
        last, ends, _ = _element(times)
        _, subject, _ = _element(content)
        return Validity(_time(first, begins.decode("ascii")), _time(last, ends.decode("ascii")), issuer == subject)
    except IndexError as error:
        raise ValueError("the certificate ends too early") from error


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first element, and the remaining data. Raises ValueError, IndexError."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    end = start + length
    if end > len(data):
        raise ValueError(f"an element ends at byte {end} of {len(data)}")
    return tag, data[start:end], data[end:]


def _time(tag: int, text: str) -> dt.datetime:
    match tag:
        case _Tag.UTC_TIME:
            # RFC 5280, 4.1.2.5.1: two-digit years from 50 on belong to the last century.
            text = ("19" if int(text[:2]) >= 50 else "20") + text
        case _Tag.GENERALIZED_TIME:
            pass
        case _:
            raise ValueError(f"a time has the unknown tag {tag:#x}")
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)
