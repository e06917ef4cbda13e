"""Keeps peers' entries from their frame until they are in the log.

Each is validated before the core processes it, so that every entry in the log is framed as this replica would frame it,
continues the chain, fits its file, and has a body that the application can apply. A peer that sends anything else is
refused; it cannot stop this replica, now or at its next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.consensus.confchange import CONF_PROPOSED_BYTES_MAX, MEMBERS_MAX, decode_conf, encode_conf
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import ConfState, EntryKind, LogId
from raftlog.log_numbers import LogIndex, Term
from raftlog.net.admission import parse_address
from raftlog.net.frames import Append, WireError
from raftlog.segment.codec import HEADER_BYTES, EntryRef, place
from raftlog.segment.log import SegmentLog

CheckBody = Callable[[memoryview, int], None]
"""Raises ValueError if the application could not apply the body of a normal entry; the number is its physical offset.
Pure, and called per entry.
"""


class ReceivedEntry(NamedTuple):
    """An entry that the core has accepted and the log does not have yet."""

    ref: EntryRef
    header: bytes
    body: bytes
    annotation: bytes


class ReceivedEntries:
    """The entries received since the last write to the log.

    Attributes:
        entries: by index and term; empty when everything that the core has accepted is in the log.
    """

    def __init__(self, core: RaftCore, log: SegmentLog, check_body: CheckBody) -> None:
        self._core = core
        self._log = log
        self._segment_bytes = log.files.segment_bytes
        self._check_body = check_body
        self.entries: dict[tuple[LogIndex, Term], ReceivedEntry] = {}

    def check(self, message: Append) -> int:
        """Return how many of the entries this replica has already. The rest may enter the log.

        Raises:
            WireError: the core must not process this request, because of its entries.
        """
        refs = message.refs
        if not refs:
            return 0
        core, prev = self._core, message.request.prev
        held_count = 0
        if prev.index != core.last_index:
            base_index = self._log.base[0]
            while held_count < len(refs) and (
                refs[held_count].index < base_index or core.holds(LogId(refs[held_count].index, refs[held_count].term))
            ):
                held_count += 1
            if held_count == len(refs):
                return held_count
        if held_count:
            prev = LogId(refs[held_count - 1].index, refs[held_count - 1].term)
        elif not core.holds(prev):
            return 0  # the core rejects or refuses the request
        chain, end = self._end_of(prev)
        theirs = refs[held_count - 1].chain if held_count else message.prev_chain
        if theirs != chain:
            raise WireError(
                f"entry {prev.index} of term {prev.term} has the chain {theirs:08x}, here it is {chain:08x}"
            )
        for number in range(held_count, len(refs)):
            ref = refs[number]
            try:
                pos = place(end, ref.size, self._segment_bytes)
                # Before the body: its check takes positions that a log can have, and here may be any 64 bits.
                if ref.pos != pos:
                    raise WireError(f"entry {ref.index} is for position {ref.pos}, here it begins at {pos}")
                check_entry(self._check_body, ref, message.entries[number][HEADER_BYTES:])
            except ValueError as error:
                raise WireError(f"entry {ref.index}: {error}") from error
            end = pos + ref.size
        return held_count

    def keep(self, message: Append, held_count: int) -> None:
        """Copy a validated request's entries from number ``held_count`` on, as far as the core has accepted them."""
        core = self._core
        for number in range(held_count, len(message.refs)):
            ref = message.refs[number]
            if core.holds(LogId(ref.index, ref.term)):
                entry, annotation = message.entries[number], message.annotations[number]
                header, body = bytes(entry[:HEADER_BYTES]), bytes(entry[HEADER_BYTES:])
                self.entries[ref.index, ref.term] = ReceivedEntry(ref, header, body, annotation)

    def get(self, index: LogIndex, term: Term) -> ReceivedEntry | None:
        """Return a kept entry; None if there is none."""
        return self.entries.get((index, term))

    def _end_of(self, entry: LogId) -> tuple[int, int]:
        """Chain value and end of an entry that the core has."""
        if (entry_here := self.entries.get((entry.index, entry.term))) is not None:
            return entry_here.ref.chain, entry_here.ref.pos + entry_here.ref.size
        log = self._log
        if entry.index == log.last_index:
            return log.chain, log.end_pos
        if entry.index == log.base[0]:
            return log.base_chain, log.base_pos
        ref = log.locate(entry.index)
        return ref.chain, ref.pos + ref.size


def check_entry(check_body: CheckBody, ref: EntryRef, body: memoryview) -> None:
    """Raise ValueError if the application or the core could not handle the body of an entry."""
    if ref.kind == EntryKind.NORMAL:
        check_body(body, ref.pos + HEADER_BYTES)
    elif ref.kind == EntryKind.CONFIG:
        check_configuration(decode_conf(body))


def check_configuration(conf: ConfState) -> None:
    """Raise ValueError if members could not elect a leader, be called, or be stored in a directory."""
    if not conf.voters:
        raise ValueError("the configuration has no voters")
    nbytes = len(encode_conf(conf))
    if len(conf.members) > MEMBERS_MAX or nbytes > CONF_PROPOSED_BYTES_MAX:
        raise ValueError(f"the configuration has {len(conf.members)} members and {nbytes} bytes, which is too much")
    for node, text in conf.addresses:
        try:
            parse_address(text)
        except ValueError as error:
            raise ValueError(f"the address of {node}: {error}") from error
