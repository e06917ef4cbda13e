"""Notes the expired messages of queues, for a replica that puts entries of archived messages in front of its queues.

Commands in the log let messages expire, and queues begin later from then on. A replica that derives its queues from the
end of an archived log backward has to know that before it comes to these messages, also after a restart. So it notes
the first offsets that such commands name, from the moment at which its queues were derived, in a file of its own. It is
written before each checkpoint, so it has at least what the checkpoint has applied. That fails if a former release
writes the checkpoints, or if queues are derived without an archive: so the file names the last entry that it covers,
and a file that is older than the checkpoint is ignored.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from struct import Struct
from typing import Final

import msgspec

from mq.protocol.numbers import QueueOffset
from raftlog import RealDisk
from raftlog.log_numbers import LogIndex

FLOORS_NAME: Final = "queue-floors"
GAP_NAME: Final = "queues-without-archive"
"""An empty file; see `note_gap`."""
_HEAD: Final = Struct(">8sI")
_MAGIC: Final = b"RAFTMQF1"
_Row = tuple[str, int, QueueOffset]


class _Content(msgspec.Struct, array_like=True):
    applied_index: LogIndex
    rows: list[_Row]


def write_floors(directory: str, floors: Mapping[tuple[str, int], QueueOffset], applied_index: LogIndex) -> None:
    """Replace the file durably; all entries up to ``applied_index`` were applied. Blocks.

    Raises OSError; then the former one is still there.
    """
    content = msgspec.msgpack.encode(_Content(applied_index, [(*key, offset) for key, offset in floors.items()]))
    path = os.path.join(directory, FLOORS_NAME)
    with open(path + ".tmp", "wb") as file:
        file.write(_HEAD.pack(_MAGIC, zlib.crc32(content)) + content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    RealDisk().sync_directory(directory)


def load_floors(directory: str, applied_index: LogIndex) -> dict[tuple[str, int], QueueOffset] | None:
    """Load the floors that `write_floors` has written, for a checkpoint of the entry ``applied_index``.

    None if there is no such file, or it is damaged, or older than the checkpoint. Raises OSError.
    """
    try:
        with open(os.path.join(directory, FLOORS_NAME), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    content = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (_MAGIC, zlib.crc32(content)):
        return None
    try:
        floors = msgspec.msgpack.decode(content, type=_Content)
    except msgspec.DecodeError:
        return None
    if floors.applied_index < applied_index:
        return None
    return {(topic, queue_id): offset for topic, queue_id, offset in floors.rows}


def note_gap(directory: str) -> None:
    """Record durably that queues may be about to lose entries of archived messages. Raises OSError.

    The log's note of where they begin may survive a power cut longer than their entries: an idle replica writes nothing
    to its log. So the queues are derived again when archived messages are served once more.
    """
    with open(os.path.join(directory, GAP_NAME), "wb") as file:
        os.fsync(file.fileno())
    RealDisk().sync_directory(directory)


def has_gap(directory: str) -> bool:
    """Whether the queues may have lost entries since they were derived for an archive; see `note_gap`."""
    return os.path.exists(os.path.join(directory, GAP_NAME))


def forget_gap(directory: str) -> None:
    """Delete the note of a gap: the queues were derived again, and the log's note says durably where they begin."""
    with suppress(OSError):  # they are derived once more at the next start
        os.unlink(os.path.join(directory, GAP_NAME))
