"""Which records of a log entry are metadata commands: shipped by the leader, so that nobody has to look for them.

Like the runs of `mq.store.dispatch` and the rows of `mq.store.sequenced`, with which they share an entry's annotation:
it begins with `COMMANDS_FORMAT` then, and what follows the rows is the annotation without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from mq.store.errors import AnnotationDamaged

COMMANDS_FORMAT = 3
_HEAD = Struct(">BI")
"""The format, and the number of rows."""
_ROW = Struct(">II")

Span = tuple[int, int]
"""Where a command begins in the body of its entry, and how many bytes it has."""


def join_commands(spans: Sequence[Span], annotation: bytes) -> bytes:
    """The annotation of an entry with commands there, whose annotation without them is ``annotation``."""
    return b"".join([_HEAD.pack(COMMANDS_FORMAT, len(spans)), *[_ROW.pack(*span) for span in spans], annotation])


def split_commands(annotation: bytes, body: bytes | memoryview) -> tuple[list[bytes], bytes]:
    """The commands in the body of an entry, and the annotation without them. Raises AnnotationDamaged."""
    size = len(annotation)
    if size < _HEAD.size or annotation[0] != COMMANDS_FORMAT:
        raise AnnotationDamaged(f"format is not {COMMANDS_FORMAT}", 0, size)
    _, count = _HEAD.unpack_from(annotation)
    end = _HEAD.size + count * _ROW.size
    if not count or end >= size:
        raise AnnotationDamaged(f"{count} commands", 0, size)
    commands: list[bytes] = []
    for start, nbytes in _ROW.iter_unpack(annotation[_HEAD.size : end]):
        if start + nbytes > len(body):
            raise AnnotationDamaged(f"a command of {nbytes} bytes at {start} of {len(body)}", 0, size)
        commands.append(bytes(body[start : start + nbytes]))
    return commands, annotation[end:]
