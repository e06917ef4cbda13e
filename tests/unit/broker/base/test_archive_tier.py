"""What a replica serves and may delete when archived messages are read from the archive."""

from __future__ import annotations

import pytest

from mq.broker.base.archive_tier import QUEUES_FROM, Tier, store_queues_from
from mq.broker.net.log_beginning import LogBeginning
from mq.broker.net.refusals import RequestRefused
from mq.broker.state.archived_log import ArchivedLog, NoteArchived, NoteTier
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.table import CommandInvalid
from mq.protocol.numbers import QueueOffset
from raftlog import Beginning, NodeId
from raftlog.log_numbers import LogIndex, Term

URL = "s3://archives/broker-a"


class Log:
    def __init__(self, base_pos: int) -> None:
        self.base_pos = base_pos
        self.notes: dict[str, bytes] = {}

    def set_note(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value


def noted(pos: int, url: str = URL) -> NoteArchived:
    return NoteArchived(url=url, index=LogIndex(pos // 10), term=Term(1), pos=pos, chain=7)


def tier_at(begin_pos: int, *, is_held: bool = False, url: str = URL) -> NoteTier:
    return NoteTier(url=url, begin_pos=begin_pos, is_held=is_held)


def tier(base_pos: int, *commands: NoteArchived | NoteTier, url: str | None = URL) -> tuple[Tier, Log, ArchivedLog]:
    archived, log = ArchivedLog(), Log(base_pos)
    for command in commands:
        archived.apply(command)
    return Tier(url=url, log=log, state=archived), log, archived


def test_nothing_is_deleted_before_the_group_serves_the_archive() -> None:
    without, log, archived = tier(100, noted(500))
    assert without.deletable_pos() == 0
    assert not log.notes
    assert without.visible_pos == 100
    archived.apply(tier_at(100))
    assert without.deletable_pos() == 500
    assert log.notes == {QUEUES_FROM: b"100"}, "noted before the first deletion"
    log.base_pos = 400
    assert without.visible_pos == 100
    assert not without.lacks_older


def test_files_are_kept_while_the_archive_manifest_is_outdated() -> None:
    held, _, archived = tier(100, noted(500), tier_at(100, is_held=True))
    assert held.deletable_pos() == 0
    assert held.begin_pos == 100, "what is there is served all the same"
    archived.apply(tier_at(100, is_held=False))
    assert held.deletable_pos() == 500


def test_new_archive_url_ignores_files_of_the_old_archive() -> None:
    other, _, archived = tier(100, noted(500), tier_at(100), url="s3://archives/new")
    assert (other.deletable_pos(), other.begin_pos) == (0, None)
    archived.apply(noted(600, "s3://archives/new"))
    assert (archived.begin_pos, archived.is_held) == (None, False)
    archived.apply(tier_at(100))
    assert archived.begin_pos is None, "of the archive before"
    archived.check_invariants()


def test_broker_without_tiers_serves_its_log() -> None:
    off, log, _ = tier(100, noted(500), tier_at(0), url=None)
    assert (off.is_wanted, off.deletable_pos(), off.visible_pos, off.begin_pos) == (False, 0, 100, None)
    log.notes[QUEUES_FROM] = b"0"
    assert off.visible_pos == 100


@pytest.mark.parametrize(
    ("has_tiers", "is_fresh", "after"),
    [(True, False, b"20"), (True, True, b"100"), (False, False, None), (False, True, None)],
)
def test_derived_queues_are_noted(has_tiers: bool, is_fresh: bool, after: bytes | None) -> None:
    log = Log(100)
    log.notes[QUEUES_FROM] = b"20"
    store_queues_from(log, has_tiers=has_tiers, is_fresh=is_fresh)
    assert log.notes.get(QUEUES_FROM) == after


class LaterThanOthers:
    def beginning(self) -> tuple[Beginning, NodeId | None]:
        return Beginning.LATER, NodeId("n2")


def test_planned_beginning_is_the_archive_beginning() -> None:
    whole, log, _ = tier(400, noted(500), tier_at(100))
    log.notes[QUEUES_FROM] = b"100"
    beginning = LogBeginning(LaterThanOthers(), whole)
    assert beginning.is_first, "the archive has what other logs have"
    beginning.check(QueueOffset(7))
    log.notes[QUEUES_FROM] = b"400"
    assert whole.lacks_older
    assert whole.visible_pos == 400
    with pytest.raises(RequestRefused, match=r"begin at position 100, .* at 400: ask another replica"):
        beginning.check(QueueOffset(7))


def test_commands_and_state_of_the_tier() -> None:
    command = tier_at(4096, is_held=True)
    assert decode_command(encode_command(command)) == command
    with pytest.raises(CommandInvalid, match="begin_pos is -1"):
        encode_command(tier_at(-1))
    _, _, archived = tier(0, noted(500))
    assert archived.capture()() == [URL, 50, 1, 500, 7], "as software of format level 6 knows it"
    archived.apply(tier_at(100))
    archived.apply(tier_at(50, is_held=True))
    assert archived.capture()() == [URL, 50, 1, 500, 7, 100, True]
    copy = ArchivedLog()
    copy.restore(archived.capture()())
    assert (copy.url, copy.end, copy.begin_pos, copy.is_held) == (URL, archived.end, 100, True)
    copy.check_invariants()
    copy.restore([URL, 50, 1, 500, 7])
    assert (copy.begin_pos, copy.is_held) == (None, False)
