"""Key indexes beside logs on real disks, and messages for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq.protocol.messages.records import ROLLBACK, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.key_index.index import KeyIndex
from mq.store.key_index.job import IndexJob
from mq.store.key_index.key_file_build import build_key_file
from mq.store.key_index.limits import DEFAULT, KeyIndexLimits
from mq.store.key_index.search import KeyQuery, SearchResult
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, SegmentLog
from tests.unit.segment.log_home import LogHome

SEGMENT_BYTES = 8192
IPV4, IPV6 = encode_host("10.0.0.1", 1), encode_host("fe80::1", 1)
EVER = (-(2**63), 2**63 - 1)


class Sent(NamedTuple):
    """A message: its keys are ``unique`` and the words of ``keys``."""

    topic: str = "T"
    unique: str = ""
    keys: str = ""
    body: bytes = b""
    store_ms: int = 0
    sys_flag: int = 0
    born_host: bytes = IPV4

    @property
    def properties(self) -> str:
        named = (("KEYS", self.keys), ("UNIQ_KEY", self.unique), ("TAGS", "x"))
        return "".join(f"{name}\x01{value}\x02" for name, value in named if value)

    def has(self, query: KeyQuery) -> bool:
        words = {self.unique} if query.unique else {self.unique, *self.keys.split(" ")}
        return (
            self.topic.encode() == query.topic
            and query.key.decode() in words
            and query.begin_ms <= self.store_ms <= query.end_ms
            and self.sys_flag != ROLLBACK
        )


def wanted(
    key: str, *, topic: str = "T", count_max: int = 64, unique: bool = False, ms: tuple[int, int] = EVER
) -> KeyQuery:
    return KeyQuery(topic.encode(), key.encode(), count_max, *ms, unique)


class Home:
    """A log of messages with its index; the entries not ``applied`` are there and not committed."""

    def __init__(self, directory: str, segment_bytes: int = SEGMENT_BYTES, limits: KeyIndexLimits = DEFAULT) -> None:
        self.home = LogHome(segment_bytes=segment_bytes)
        self.log: SegmentLog = self.home.open(tail_bytes_max=0)
        self.directory = directory
        self.sent: list[tuple[Sent, bytes]] = []
        self.applied = 0
        self.limits = limits
        self.index = self.reopened()

    def reopened(self) -> KeyIndex:
        return KeyIndex(self.directory, self.log, lambda: LogIndex(self.applied), self.limits)

    def limit(self, limits: KeyIndexLimits) -> None:
        """Open the index again, with these limits."""
        self.limits = limits
        self.index = self.reopened()

    def put(self, *messages: Sent, kind: int = NORMAL) -> None:
        """One entry with these messages, committed."""
        body = b""
        size = 48 + sum(len(encoded(each, 0)) for each in messages)
        pos = self.log.position_for(size) + 48
        for each in messages:
            record = encoded(each, pos + len(body))
            self.sent.append((each, record))
            body += record
        self.log.append(kind, self.log.last_index + 1, Term(1), body)
        self.home.submit(self.log)
        self.applied = self.log.last_index

    def make(self, limit: int = 1000) -> int:
        """Make files as long as there is something to make; returns how many."""
        made = 0
        while made < limit and (jobs := self.index.jobs()):
            for job in jobs[: limit - made]:
                write(job, build_key_file(self.log.read_range, job.begin, job.end))
                self.index.on_build(job.target)
                made += 1
        return made

    def search(self, query: KeyQuery, is_over: Callable[[], bool] = lambda: False) -> SearchResult:
        return self.index.search(query, is_over).run()

    def expected(self, query: KeyQuery) -> list[bytes]:
        return [record for each, record in self.sent if each.has(query)][-query.count_max :]


def encoded(message: Sent, physical_offset: int) -> bytes:
    return encode_record(
        topic=message.topic,
        queue_id=0,
        body=message.body,
        properties=message.properties,
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(physical_offset),
        born_timestamp_ms=0,
        born_host=message.born_host,
        store_timestamp_ms=message.store_ms,
        store_host=IPV4,
        sys_flag=message.sys_flag,
    )


def write(job: IndexJob, content: bytes) -> None:
    with open(job.target, "wb") as file:
        file.write(content)


def fill(home: Home, count: int = 40) -> None:
    for number in range(count):
        home.put(Sent(unique=f"U{number}", keys=f"K{number % 7} all", body=bytes(900), store_ms=number))


def kept_behind_the_log(home: Home) -> bytes:
    """Let the log begin two files later, with an index that keeps their files; returns what the log had."""
    data = home.log.read_range(0, 3 * SEGMENT_BYTES)
    home.index = KeyIndex(home.directory, home.log, lambda: LogIndex(home.applied), home.limits, kept_from=lambda: 0)
    home.make()
    home.log.drop_prefix(2 * SEGMENT_BYTES, b"", home.log.last_index)
    home.home.submit(home.log)
    return data


def search_archived(home: Home, key: str, data: bytes) -> SearchResult:
    search = home.index.search_archived(wanted(key), lambda pos, nbytes: data[pos : pos + nbytes], lambda: False)
    return search.run()
