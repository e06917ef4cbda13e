"""What is kept with term and vote: notes of the log's user, the directory's name; and the configurations found."""

from __future__ import annotations

import random
import struct
import zlib

import cbor2
import msgspec
import pytest

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL
from raftlog.segment.meta import NOTES_BYTES_MAX, MetaState, decode_slot, encode_slot
from tests.unit.segment.log_home import LogHome


def test_notes_are_durable_with_the_next_ticket(home: LogHome) -> None:
    log = home.open()
    log.set_note("conf", b"\xff\0first")
    log.set_note("gone", b"x")
    home.submit(log)
    log.set_note("gone", None)
    log.set_note("never set", None)
    home.submit(log, term=3, voted_for="n2")
    log.set_note("lost", b"not submitted")
    home.disk.crash(random.Random(1))
    log = home.open()
    assert dict(log.notes) == {"conf": b"\xff\0first"}
    assert (log.meta.term, log.meta.voted_for) == (3, "n2")
    home.put(log, b"body", term=3)
    home.submit(log, term=4)
    log.close()
    assert dict(home.open().notes) == {"conf": b"\xff\0first"}


def test_notes_that_do_not_fit_are_a_bug(home: LogHome) -> None:
    log = home.open()
    with pytest.raises(AssertionError, match="there is room for"):
        log.set_note("big", bytes(NOTES_BYTES_MAX))


def test_largest_notes_fit_a_slot() -> None:
    state = MetaState(
        "c" * 64, "n" * 64, 1 << 40, Term(1 << 60), "v" * 64, LogIndex(1 << 60), 1 << 60, boot_id="b" * 36
    )
    state = msgspec.structs.replace(state, store_id="s" * 64, notes={"k": bytes(NOTES_BYTES_MAX - 1)})
    assert decode_slot(encode_slot(state, 1)) == (1, state)


def test_store_id_stays_for_ever_and_differs_between_directories(home: LogHome) -> None:
    first = home.open().store_id
    home.close_all()
    assert home.open().store_id == first != ""
    assert LogHome().open().store_id != first
    assert LogHome().open(store_id="given").store_id == "given"


def test_older_vote_file_opens_and_gets_a_store_id(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"body", term=2)
    log.close()
    for number in (0, 1):
        slot = home.disk.content("/data/log/meta")[number * 4096 :][:4096]
        decoded = decode_slot(slot)
        assert decoded is not None
        older = {key: value for key, value in msgspec.to_builtins(decoded[1]).items() if key not in NEWER_FIELDS}
        slot = reframed(slot, cbor2.dumps(older))
        home.disk.overwrite("/data/log/meta", number * 4096, slot)
    log = home.open()
    assert (log.last_index, log.base, log.base_pos, dict(log.notes)) == (1, (0, 0), 0, {})
    store_id = log.store_id
    assert store_id
    home.close_all()
    assert home.open().store_id == store_id


NEWER_FIELDS = {"base", "store_id", "notes"}


def reframed(slot: bytes, payload: bytes) -> bytes:

    prefix = slot[:20] + struct.pack(">I", len(payload))
    return (prefix + struct.pack(">I", zlib.crc32(payload, zlib.crc32(prefix))) + payload).ljust(4096, b"\0")


def test_configs_follow_appends_truncation_and_reopening(home: LogHome) -> None:
    log = home.open()
    for index, kind in enumerate((NORMAL, CONFIG, NORMAL, CONFIG, CONFIG), 1):
        log.append(kind, LogIndex(index), Term(1), b"body %d" % index)
    home.submit(log)
    assert log.configs == [(2, b"body 2"), (4, b"body 4"), (5, b"body 5")]
    log.truncate(LogIndex(5))
    home.submit(log)
    assert log.configs == [(2, b"body 2"), (4, b"body 4")]
    home.close_all()
    assert home.open().configs == [(2, b"body 2"), (4, b"body 4")]
