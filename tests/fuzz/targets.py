"""What is fuzzed: each target gives an input to a compiled parser and to its reference, and asserts that both agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mq.compiled import checked_records
from mq.protocol.errors import FrameError
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.messages.records import RecordError, check_records
from mq.protocol.numbers import PhysicalOffset
from tests.support.send_paths import compare

CUT: Final = b"\xffCUT\xff"
"""Where an input for `sends` is cut into the chunks that the broker receives."""
RECORDS_AT: Final = 1000


def sends(data: bytes) -> None:
    """The chunks of ``data`` give the same log, replies and refusals in both forms of the send path."""
    compare([part for chunk in data.split(CUT) if chunk for part in _comparable(chunk)])


def _comparable(chunk: bytes) -> Iterator[bytes]:
    """A chunk, or each of its frames alone if one of them closes the connection.

    The reference decodes a whole chunk before it serves any of it, so both forms may differ in what they have stored
    when a chunk's later frame closes the connection.
    """
    try:
        decode_chunk(chunk)
    except FrameError:
        at = 0
        while at < len(chunk):
            end = at + 4 + int.from_bytes(chunk[at : at + 4], "big")
            yield chunk[at:end]
            at = end
    else:
        yield chunk


def records(data: bytes) -> None:
    """The compiled check of received records and its reference give the same verdict on ``data``."""
    checked = checked_records(data, RECORDS_AT)
    assert 0 <= checked <= len(data), f"{checked} of {len(data)} bytes were checked"
    verdict, reference = _verdict(data, checked), _verdict(data, 0)
    assert verdict == reference, f"{verdict} after {checked} checked bytes, {reference} by the reference alone"


def _verdict(data: bytes, checked: int) -> str | None:
    try:
        check_records(memoryview(data), PhysicalOffset(RECORDS_AT), checked)
    except RecordError as error:
        return str(error)
    return None


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"sends": sends, "records": records}
