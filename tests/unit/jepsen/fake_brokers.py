"""A cluster for the tests of faults: brokers are directories and what they say of themselves; nothing runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import trio

from checkers.history import History, decode_events, gather
from jepsen.nemeses.injection import Injection
from jepsen.recorder import Recorder

SEGMENT_BYTES = 100


class FakeNetwork:
    def listens(self, node: str) -> tuple[str, int]:
        return "127.0.0.1", 10911


@dataclass
class FakeCluster:
    """Three brokers, n0 leads. A start and what brokers say can be replaced by a test."""

    directory: Path
    nodes: tuple[str, ...] = ("n0", "n1", "n2")
    settings: dict[str, str] = field(default_factory=lambda: {"segment_bytes": str(SEGMENT_BYTES)})
    network: FakeNetwork = field(default_factory=FakeNetwork)
    running: set[str] = field(default_factory=lambda: {"n0", "n1", "n2"})
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    votes: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = (2, "in use by process 7; made for node, made for cluster, made for segment")
    left_by_refused: bytes = b""

    def __post_init__(self) -> None:
        for node in self.nodes:
            (self.data_dir(node) / "commitlog").mkdir(parents=True)
            (self.data_dir(node) / "commitlog" / f"{0:020d}").write_bytes(b"x" * SEGMENT_BYTES)

    def data_dir(self, node: str) -> Path:
        return self.directory / node

    def log_file(self, node: str) -> Path:
        return self.directory / f"{node}.log"

    async def leader(self) -> str:
        await trio.lowlevel.checkpoint()
        return "n0"

    async def figures(self, node: str, seconds: float = 1.0) -> dict[str, str] | None:
        await trio.lowlevel.checkpoint()
        return self.tables.get(node)

    async def kill(self, node: str) -> None:
        await trio.lowlevel.checkpoint()
        self.running.discard(node)

    stop = kill

    async def start(self, node: str) -> None:
        await trio.lowlevel.checkpoint()
        assert node not in self.running
        self.running.add(node)

    async def start_once(self, node: str, *options: str, seconds: float) -> tuple[int, str] | None:
        await trio.lowlevel.checkpoint()
        if self.left_by_refused:
            (self.data_dir(node) / "commitlog" / "meta").write_bytes(self.left_by_refused)
        return self.refusal

    async def wait_caught_up(self, node: str, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        assert node in self.running

    async def wipe(self, node: str) -> None:
        await trio.lowlevel.checkpoint()
        shutil.rmtree(self.data_dir(node))

    async def vote(self, node: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.votes.get(node)


class Noted:
    """What a fault wrote down; complete when the block of `injected` is over."""

    history: History

    @property
    def misbehaved(self) -> list[str]:
        return [f"{event.n} {event.err}" for event in self.history.of_run("misbehaved")]

    @property
    def seen(self) -> str | None:
        (fault,) = self.history.faults
        return fault.seen


@contextmanager
def injected(cluster: FakeCluster) -> Iterator[tuple[Injection, Noted]]:
    """Faults for a cluster, and what they note."""
    noted = Noted()
    path = cluster.directory / "history.jsonl"
    with Recorder(path, lambda: 0) as recorder:
        yield Injection(cast("Any", cluster), recorder, Random(1), lambda _: None), noted
    noted.history = gather(decode_events(path.read_bytes().splitlines(keepends=True)))
