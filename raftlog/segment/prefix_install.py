"""Puts back the beginning of a log that was deleted early: closed files from a peer, before the first own file.

Theory of operation. Closed files are equal on all replicas. So the files before the beginning of this log can be taken
from any peer that still has them; their last entry must be the one before the own base, with the same chain, which
proves all of them. They are staged like a whole log (see `segment.snapshot_install`) in the directory ``refill``, and
installed at an opening: the files move in front of the log, then the base moves back. The renaming of ``READY`` to
``INSTALL`` is the point of no return; every later step can be repeated.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec

from raftlog.segment.disk import Disk
from raftlog.segment.meta import Base, MetaFile, MetaState
from raftlog.segment.note_names import CONF, REFILLED
from raftlog.segment.snapshot_install import INSTALL, READY, Manifest, discard, stored_manifest

REFILL_NAME: Final = "refill"

_FILE_NAME = re.compile(r"(\d{20})(\.index)?")


def fits_before(manifest: Manifest, base: Base, segment_bytes: int) -> bool:
    """Whether the described files end exactly where a log begins, with the entry before its first one."""
    last = manifest.last
    return (
        manifest.segment_bytes == segment_bytes
        and manifest.starts.stop == base.pos
        and manifest.base.pos < base.pos
        and (last.index, last.term, last.chain) == (base.index, base.term, base.chain)
    )


def install_prefix(disk: Disk, directory: str, meta: MetaFile, disk_state: MetaState) -> bool:
    """Put staged files in front of the log, if they are ready. The directory is locked, with no log open.

    If the log begins elsewhere by now, they are removed. The note `REFILLED` is set.

    Returns:
        Whether the files have changed, so that they must be listed again.

    Raises:
        OSError: a disk error; the next opening continues.
    """
    root = os.path.join(directory, REFILL_NAME)
    try:
        names = set(disk.listdir(root))
    except OSError:
        return False  # there never was one
    if not names & {READY, INSTALL}:
        return False
    manifest = stored_manifest(disk, root)
    base = disk_state.starts_at
    if manifest is None or not fits_before(manifest, base, disk_state.segment_bytes):
        # With the mark `INSTALL` too: the base was moved already, and only the marks are left.
        discard(disk, directory, REFILL_NAME)
        return False
    if INSTALL not in names:
        disk.rename(os.path.join(root, READY), os.path.join(root, INSTALL))
        disk.sync_directory(root)
    names_to_install = {f"{start:020d}" for start in manifest.starts}
    for name in sorted(names):
        if (match := _FILE_NAME.fullmatch(name)) and match[1] in names_to_install:
            disk.rename(os.path.join(root, name), os.path.join(directory, name))
    disk.sync_directory(directory)
    disk.sync_directory(root)
    notes = {**disk_state.notes, CONF: manifest.conf, REFILLED: b"1"}
    state = msgspec.structs.replace(disk_state, base=manifest.base, notes=notes)
    # Both slots, so that damage to one of them cannot restore the later base, below which files are removed.
    meta.write(state)
    meta.write(state)
    discard(disk, directory, REFILL_NAME)
    return True
