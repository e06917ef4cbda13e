"""The loop of a pipeline against a table and a topic in memory: killed at every step, run twice, with bad messages."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark.positions import Position
from spark.tables.column_types import Schema, parse_schema
from spark.tables.commits import Commit, CommitRefused, Overtaken
from spark.tables.loop import Loop, Range, RangeCounts, Stopped
from spark.tables.pipeline import Pipeline, parse_pipeline

QUEUES = (("a", 0), ("a", 1), ("b", 0))
Place = tuple[str, int, int]


class Killed(BaseException):
    """Not caught by anything."""


@dataclass
class World:
    """What survives a process: the topic, the table, the plan, and the broker's memory of dead letters."""

    ends: dict[tuple[str, int], int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    bad: Callable[[Place], bool] = lambda place: place[2] % 5 == 3
    rows: list[Place] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    kept: Commit | None = None
    dead: list[Place] = field(default_factory=list)
    numbers: set[tuple[str, int, int]] = field(default_factory=set)
    step: Callable[[str], None] = lambda _: None
    per_commit: int = 7
    lost: bool = False
    start: dict[tuple[str, int], int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))

    def position(self, offsets: dict[tuple[str, int], int]) -> dict[str, Any]:
        at = {("T", *queue): offset for queue, offset in offsets.items()}
        return Position("c", {("T", "a"): "1", ("T", "b"): "1"}, at).to_json()


class Topic:
    def __init__(self, world: World) -> None:
        self._world = world

    def beginning(self) -> dict[str, Any]:
        return self._world.position(self._world.start)

    def earliest(self) -> dict[str, Any]:
        return self._world.position(dict.fromkeys(QUEUES, 0))

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        self._world.step("look at the topic")
        offsets = {queue: start["topics"]["T"]["q"][f"{queue[0]}:{queue[1]}"] for queue in QUEUES}
        left = self._world.per_commit
        for queue in QUEUES:
            taken = max(0, min(left, self._world.ends[queue] - offsets[queue]))
            offsets[queue] += taken
            left -= taken
        return self._world.position(offsets)


class Messages:
    def __init__(self, world: World, ranges: Range) -> None:
        self.schema: Schema = parse_schema({"id": "bigint"})
        self._world = world
        self.places = [
            (name, number, offset) for (_, name, number), (low, high) in ranges.items() for offset in range(low, high)
        ]
        if world.lost:
            self.places.pop()

    def count(self) -> RangeCounts:
        self._world.step("count")
        queues = {}
        for queue, group in itertools.groupby(self.places, key=lambda place: place[:2]):
            offsets = [place[2] for place in group]
            queues[queue] = (len(offsets), min(offsets), max(offsets))
        bad = [place for place in self.places if self._world.bad(place)]
        return RangeCounts(queues, len(bad), f"{bad[0]}, it is bad" if bad else None)

    def send_dead(self, app_id: str, version: int) -> None:
        for number, place in enumerate(place for place in self.places if self._world.bad(place)):
            self._world.step("send a dead letter")
            if (app_id, version, number) not in self._world.numbers:
                self._world.numbers.add((app_id, version, number))
                self._world.dead.append(place)

    def close(self) -> None:
        pass


class Table:
    def __init__(self, world: World) -> None:
        self._world = world

    def open(self) -> Commit | None:
        return self.last()

    def last(self) -> Commit | None:
        return self._world.commits[-1] if self._world.commits else None

    def prepare(self, schema: Schema) -> None:
        self._world.step("prepare")

    def create(self, schema: Schema, commit: Commit) -> None:
        self._add([], commit)

    def commit(self, batch: Messages, commit: Commit) -> None:
        self._add([place for place in batch.places if not self._world.bad(place)], commit)

    def _add(self, rows: list[Place], commit: Commit) -> None:
        self._world.step("before the commit")
        if commit.number != len(self._world.commits):
            raise Overtaken("somebody was faster")
        self._world.commits.append(commit)
        self._world.rows += rows
        self._world.step("after the commit")


class Plans:
    def __init__(self, world: World) -> None:
        self._world = world

    def plan(self) -> Commit | None:
        return self._world.kept

    def keep_plan(self, commit: Commit) -> None:
        self._world.step("keep the plan")
        self._world.kept = commit


def pipeline(more: str = "dead_letters: {topic: Bad, stop_above_percent: 90}") -> Pipeline:
    text = f"namesrv: h:1\ntopic: T\ntable: {{format: parquet, location: /t}}\n{more}\n"
    return parse_pipeline(text, Path("/p.yaml"))


def loop_of(world: World, of: Pipeline | None = None) -> Loop:
    return Loop(
        of or pipeline(),
        Topic(world),
        Table(world),
        Plans(world),
        lambda ranges, _: Messages(world, ranges),
        run="r",
        clock=lambda: 0.0,
        wall_clock_ms=lambda: 0,
    )


def drain(world: World) -> Loop:
    loop = loop_of(world)
    loop.open()
    while loop.step():
        pass
    return loop


def everything(world: World) -> Counter[Place]:
    return Counter((*queue, offset) for queue in QUEUES for offset in range(world.ends[queue]))


def check(world: World) -> None:
    there = Counter(world.rows) + Counter(world.dead)
    assert there == everything(world)
    assert all(world.bad(place) for place in world.dead)


def test_each_message_is_a_row_or_a_dead_letter() -> None:
    world = World(ends={("a", 0): 20, ("a", 1): 0, ("b", 0): 9})
    loop = drain(world)
    check(world)
    assert loop.figures.messages == 29
    assert loop.figures.dead == len(world.dead) == 6
    assert [commit.number for commit in world.commits] == list(range(len(world.commits)))
    assert loop.step() is False


@pytest.mark.parametrize("seed", range(40))
def test_processes_killed_at_any_step_lose_and_double_nothing(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    for _ in range(12):
        for queue in QUEUES:
            world.ends[queue] += rng.randrange(8)
        left = [rng.randrange(40)]

        def die(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        world.step = die
        try:
            drain(world)
        except Killed:
            pass
        world.per_commit = rng.randrange(1, 20)
    world.step = lambda _: None
    drain(world)
    check(world)


@pytest.mark.parametrize("seed", range(20))
def test_two_processes_at_once_write_each_row_once(seed: int) -> None:
    rng = random.Random(seed)
    world = World(ends={("a", 0): 30, ("a", 1): 12, ("b", 0): 1})
    inner = [False]

    def other(name: str) -> None:
        if name == "before the commit" and not inner[0] and rng.random() < 0.4:
            inner[0] = True
            second = loop_of(world)
            second.open()
            second.step()
            inner[0] = False

    world.step = other
    first = drain(world)
    check(world)
    assert first.figures.overtaken > 0 or seed not in (0, 1, 2)


def test_repeated_commit_has_the_same_dead_letters() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 6))

    def die(name: str) -> None:
        if name == "before the commit" and world.dead:
            raise Killed

    world.step = die
    with pytest.raises(Killed):
        drain(world)
    sent = len(world.dead)
    world.ends = dict.fromkeys(QUEUES, 30)  # without the plan, the next commit would have other messages
    world.per_commit = 90
    world.step = lambda _: None
    drain(world)
    check(world)
    assert sent > 0


def test_pipeline_killed_before_its_first_rows_keeps_its_beginning() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 4))

    def die(name: str) -> None:
        if name == "count":
            raise Killed

    world.step = die
    with pytest.raises(Killed):
        drain(world)
    assert [commit.messages for commit in world.commits] == [0]


def test_messages_that_were_not_read_are_never_committed() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 4), lost=True)
    with pytest.raises(Stopped, match=r"offsets 0 to 2 were planned \(3 messages\), and 2 from 0 to 1 were read"):
        drain(world)
    assert world.rows == []
    assert world.dead == []


def test_bad_message_without_a_dead_letter_topic_stops_at_its_offset() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 4))
    loop = loop_of(world, pipeline(""))
    loop.open()
    with pytest.raises(Stopped) as caught:
        loop.step()
    assert "1 of 7 messages do not decode; the first is ('a', 0, 3), it is bad" in str(caught.value)
    assert "The table has the messages before a:0 0, a:1 0, b:0 0." in str(caught.value)
    assert world.rows == []


def test_schema_that_fits_nothing_stops_before_all_become_dead_letters() -> None:
    world = World(ends={("a", 0): 50, ("a", 1): 0, ("b", 0): 0}, bad=lambda _: True, per_commit=100)
    with pytest.raises(Stopped, match=r"50 of 50 messages do not decode.*probably decode is wrong"):
        drain(world)
    assert (world.dead, world.rows) == ([], [])
    world.bad = lambda place: place[2] < 9
    drain(world)
    check(world)


def test_table_that_would_begin_in_the_future_is_refused() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 4))
    with pytest.raises(CommitRefused, match=r"start is in the future, at 2099-01-01T00:00:00\.000Z"):
        loop_of(world, pipeline("start: 2099-01-01T00:00:00Z")).open()
    assert world.commits == []


def test_two_pipelines_on_one_table_are_refused() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 4))
    drain(world)
    other = loop_of(world, pipeline("name: other"))
    with pytest.raises(CommitRefused, match="belongs to the pipeline 'p' from the topic 'T'"):
        other.open()


def test_table_that_others_always_change_stops_the_pipeline() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 40))
    loop = loop_of(world)
    loop.open()

    def other(name: str) -> None:
        if name == "before the commit":
            last = world.commits[-1]
            world.commits.append(
                Commit(last.pipeline, last.number + 1, last.end, last.end, 0, 0, 0, "other", last.schema, last.begin)
            )

    world.step = other
    with pytest.raises(Stopped, match="5 times before this pipeline could"):
        loop.step()
    assert world.rows == []


def test_table_that_is_removed_meanwhile_stops_the_pipeline() -> None:
    world = World(ends=dict.fromkeys(QUEUES, 40))
    loop = loop_of(world)
    loop.open()

    def remove(name: str) -> None:
        if name == "before the commit":
            world.commits.clear()

    world.step = remove
    with pytest.raises(Stopped, match="the table /t, or its commits, were removed while this pipeline ran") as caught:
        loop.step()
    assert "The table has the messages before a:0 0, a:1 0, b:0 0." in str(caught.value)
    assert world.rows == []


@pytest.mark.parametrize("by", ["the file", "a new version"])
def test_changing_the_rules_between_two_attempts_loses_no_dead_letter(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ends=dict.fromkeys(QUEUES, 6), per_commit=100)

    def die(name: str) -> None:
        if name == "before the commit" and world.dead:
            raise Killed

    world.step = die
    with pytest.raises(Killed):
        drain(world)
    world.step = lambda _: None
    world.bad = lambda place: place[2] % 2 == 0
    letters = "dead_letters: {topic: Bad, stop_above_percent: 90}"
    if by == "the file":
        loop = loop_of(world, pipeline(f"decode: {{format: text}}\n{letters}"))
    else:
        monkeypatch.setattr("spark.tables.loop.RULES", "of the next version")
        loop = loop_of(world, pipeline(letters))
    loop.open()
    while loop.step():
        pass
    assert not everything(world) - (Counter(world.rows) + Counter(world.dead))


@pytest.mark.parametrize("seed", range(20))
def test_table_is_filled_backward_with_each_older_message_once(seed: int) -> None:
    rng = random.Random(seed)
    ends = {queue: rng.randrange(30) for queue in QUEUES}
    world = World(ends=ends, start={queue: rng.randrange(end + 1) for queue, end in ends.items()})
    drain(world)
    left = [0]

    def die(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    for _ in range(12):
        left[0] = rng.randrange(40)
        world.step = die
        for queue in QUEUES:
            world.ends[queue] += rng.randrange(3)
        try:
            loop = loop_of(world)
            loop.open()
            while loop.backfill_step() if rng.random() < 0.7 else loop.step():
                pass
        except Killed:
            pass
    world.step = lambda _: None
    loop = drain(world)
    while loop.backfill_step():
        pass
    assert set(world.rows) | set(world.dead) == set(everything(world))
    assert Counter(world.rows) == Counter(set(world.rows))
    assert loop.last.begin == world.position(dict.fromkeys(QUEUES, 0))
