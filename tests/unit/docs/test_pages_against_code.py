"""The pages about formats, the walks of a message and the wire requests, against the code."""

from __future__ import annotations

import re
import runpy
from itertools import accumulate
from pathlib import Path
from struct import Struct, calcsize

import pytest

from mq.protocol.codes import RequestCode
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES
from mq.protocol.messages import transaction_sets
from mq.store import checkpoint, queue_blocks
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.key_index import file as key_file
from raftlog.net import frames
from raftlog.segment import closed_file_index, codec, meta

GUIDE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()


def section(title: str) -> str:
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def offsets(layout: Struct, start: int = 0) -> list[int]:
    """Where each field of a structure begins."""
    kinds = [kind if not count else f"{count}{kind}" for count, kind in _fields(layout.format[1:])]
    return [start, *accumulate((calcsize(f">{kind}") for kind in kinds), initial=start)][1:-1]


def _fields(layout: str) -> list[tuple[str, str]]:
    found, count = [], ""
    for char in layout:
        if char.isdigit():
            count += char
        else:
            found.append((count, char))
            count = ""
    return found


def rows(text: str, table: int = 0) -> list[int]:
    """The offsets in the first column of a table, as far as there are some."""
    lines = text.split("| offset | size | field |\n|---|---|---|\n")[table + 1].split("\n\n")[0].splitlines()
    return [int(line.split("|")[1]) for line in lines if line.split("|")[1].strip()]


@pytest.mark.parametrize(
    ("title", "table", "layout", "start"),
    [
        ("The log: segment files", 0, codec.HEADER, 0),
        ("The vote file", 0, Struct(meta._PREFIX.format + meta._CRC.format[1:]), 0),
        ("Transactions of several messages", 0, transaction_sets._HEAD, 0),
        ("Consume queues", 0, QUEUE_ENTRY, 0),
        ("Consume queues", 1, queue_blocks.TRAILER, 0),
        ("The checkpoint", 0, checkpoint._HEAD, 0),
    ],
)
def test_record_fields_begin_at_the_documented_offsets(title: str, table: int, layout: Struct, start: int) -> None:
    expected = offsets(layout, start)
    assert rows(section(title), table)[: len(expected)] == expected


def test_record_heads_with_grouped_fields_are_documented() -> None:
    head = offsets(Struct(key_file._START.format + key_file._FIELDS.format[1:]))
    assert rows(section("The key index")) == [*head[:4], head[5], head[8], calcsize(">8sII") + key_file._FIELDS.size]
    frame = section("Frames between replicas")
    prefix = offsets(frames._PREFIX)
    assert rows(frame, 0) == [*prefix, frames._PREFIX.size]
    append = offsets(frames._APPEND)
    assert rows(frame, 1) == [append[0], append[1], append[3], append[4], *append[5:], frames._APPEND.size]


def test_magic_numbers_and_sizes() -> None:
    for text in (
        codec.HEADER_BYTES,
        key_file._MAGIC.decode(),
        checkpoint._MAGIC.decode(),
        closed_file_index._MAGIC.decode(),
        meta._MAGIC.decode().strip(),
        meta.SLOT_BYTES,
        queue_blocks.ENTRIES_PER_BLOCK,
        key_file._BLOCK_ROWS,
        queue_blocks.block_bytes(queue_blocks.ENTRIES_PER_BLOCK),
    ):
        assert str(text) in GUIDE


ROOT = Path(__file__).parents[3]
SUFFIXES = {".py", ".pyx", ".pxi"}


def called(text: str) -> set[str]:
    """The functions and classes in the tables of stations; those in the right columns, without their packages."""
    rows = [row for table in text.split("\n| station |")[1:] for row in table.split("\n\n")[0].splitlines()[2:]]
    names = re.findall(r"`([\w.]+)`", "\n".join(row.split("|", 2)[2] for row in rows))
    return {name.rpartition(".")[2] for name in names} - {"raftlog"}


def test_documented_walks_name_existing_functions() -> None:
    names = called((ROOT / "ARCHITECTURE.md").read_text())
    assert len(names) > 60
    paths = [path for package in ("mq", "raftlog") for path in (ROOT / package).rglob("*") if path.suffix in SUFFIXES]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text())}
    assert not names - words, "ARCHITECTURE.md names what no module has any more"


def test_parser_finds_names_of_a_walk() -> None:
    table = "\n| station | Python |\n|---|---|\n| turn | `Reactor.run`, C `_take` (`raftlog`) |\n\n`other`"
    assert called(table) == {"run", "_take"}


SITE = Path(__file__).parents[3] / "docs" / "site"


def test_site_lists_each_request_with_its_header() -> None:
    lines = list(runpy.run_path(str(SITE / "wire_requests.py"))["page"]())
    rows = {line.split("|")[1].strip(): line for line in lines if line.count("|") == 4 and "`" in line}
    assert len(rows) == len(REQUEST_CLASSES)
    pull = rows[str(int(RequestCode.PULL_MESSAGE))]
    assert "`PULL_MESSAGE`: return messages of one queue from an offset on (`pull`)" in pull
    assert "`queueOffset` int" in pull
    assert "*`maxMsgBytes` int*" in pull, "it may be left out"
