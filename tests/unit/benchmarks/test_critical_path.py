"""Events of three replicas as the path of an entry; the page and the picture of `make bench-critical-path`."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.critical_path.page import LoadTrace, picture, section, shares
from benchmarks.critical_path.steps import Event, Lane, Path, Point, Row, paths, rows, turns_per_entry

MS = 1e-3


def leader_events(begin: float, index: int, acknowledged: tuple[tuple[str, float], ...]) -> list[Event]:
    """A turn with the request, one with its own write after 2 ms, and one for each acknowledgement."""
    events = [
        Event(begin, Point.TURN_BEGINS, 0, ""),
        Event(begin + 0.1 * MS, Point.APPENDED, index, ""),
        Event(begin + 0.2 * MS, Point.WRITE_QUEUED, index, ""),
        Event(begin + 0.3 * MS, Point.ENTRIES_SENT, index, "n1"),
        Event(begin + 0.4 * MS, Point.ENTRIES_SENT, index, "n2"),
        Event(begin + 2.0 * MS, Point.TURN_BEGINS, 0, ""),
        Event(begin + 0.15 * MS, Point.WRITE_BEGAN, index, ""),
        Event(begin + 1.9 * MS, Point.WRITE_ENDED, index, ""),
        Event(begin + 2.1 * MS, Point.DURABLE, index, ""),
    ]
    for number, (name, at) in enumerate(acknowledged):
        events += [
            Event(begin + at, Point.TURN_BEGINS, 0, ""),
            Event(begin + at + 0.1 * MS, Point.ACKNOWLEDGEMENT_RECEIVED, index, name),
        ]
        if not number:
            events += [
                Event(begin + at + 0.2 * MS, Point.APPLIED, index, ""),
                Event(begin + at + 0.2 * MS, Point.SENDING, 0, ""),
                Event(begin + at + 0.3 * MS, Point.SENT, 0, ""),
            ]
    return events


def follower_events(begin: float, index: int, came: float, write_seconds: float) -> list[Event]:
    at = begin + came
    written = at + 0.3 * MS + write_seconds
    return [
        Event(at, Point.TURN_BEGINS, 0, ""),
        Event(at + 0.1 * MS, Point.ENTRIES_RECEIVED, index, "n0"),
        Event(at + 0.2 * MS, Point.WRITE_QUEUED, index, ""),
        Event(written + 0.1 * MS, Point.TURN_BEGINS, 0, ""),
        Event(at + 0.3 * MS, Point.WRITE_BEGAN, index, ""),
        Event(written, Point.WRITE_ENDED, index, ""),
        Event(written + 0.2 * MS, Point.DURABLE, index, ""),
        Event(written + 0.2 * MS, Point.SENDING, 0, ""),
        Event(written + 0.3 * MS, Point.SENT, 0, ""),
    ]


def traced_paths() -> list[Path]:
    leader, fast, slow = list[Event](), list[Event](), list[Event]()
    for number in range(3):
        begin, index = 100.0 + number, 7 + number
        leader += leader_events(begin, index, (("n2", 3.0 * MS), ("n1", 6.0 * MS)))
        fast += follower_events(begin, index, 0.5 * MS, 1.0 * MS)
        slow += follower_events(begin, index, 0.6 * MS, 4.0 * MS)
    return paths(leader, {"n1": slow, "n2": fast})


def test_reply_waits_only_for_the_first_acknowledgement() -> None:
    found = traced_paths()
    assert [path.seconds for path in found] == pytest.approx([3.3 * MS] * 3)
    critical = [step for step in found[0].steps if step.is_critical]
    assert {step.lane for step in critical} == {Lane.LEADER, Lane.FOLLOWER, Lane.FOLLOWER_WRITER, Lane.WIRE}
    [write] = [step for step in critical if step.name == "write and sync"]
    assert write.lane is Lane.FOLLOWER_WRITER
    assert write.seconds == pytest.approx(1.0 * MS)
    assert critical[0].begin == 0.0
    # Nothing is between the steps: what one begins with is where another one has ended.
    ends = [0.0, *(step.end for step in critical)]
    assert all(any(abs(step.begin - end) < 1e-9 for end in ends) for step in critical)


def test_acknowledgement_of_the_writer_waits_for_no_event_loop() -> None:
    """The event loop of the follower notes the write only in its next turn."""
    leader = leader_events(100.0, 7, (("n2", 3.0 * MS), ("n1", 6.0 * MS)))
    written = [*follower_events(100.0, 7, 0.5 * MS, 1.0 * MS)[:3], *follower_events(100.0, 7, 0.5 * MS, 1.0 * MS)[4:6]]
    noted = [Event(104.0, Point.TURN_BEGINS, 0, ""), Event(104.0, Point.DURABLE, 7, "")]
    (path,) = paths(leader, {"n1": follower_events(100.0, 7, 0.6 * MS, 4.0 * MS), "n2": [*written, *noted]})
    [last] = [step for step in path.steps if step.lane is Lane.WIRE]
    assert last.name == "the writer sends the acknowledgement, the leader wakes up"
    assert (last.begin, last.end) == pytest.approx((1.8 * MS, 3.0 * MS))
    assert not [step for step in path.steps if step.lane is Lane.FOLLOWER and "acknowledgement" in step.name]


def test_partly_traced_entry_is_left_out() -> None:
    leader = leader_events(100.0, 7, (("n1", 3.0 * MS), ("n2", 4.0 * MS)))
    leader += leader_events(101.0, 8, (("n1", 3.0 * MS), ("n2", 4.0 * MS)))[:4]
    follower = follower_events(100.0, 7, 0.5 * MS, 1.0 * MS)
    assert len(paths(leader, {"n1": follower, "n2": follower})) == 1
    assert paths([], {}) == []
    assert turns_per_entry(follower, 1) == 2.0


def test_writer_started_before_its_event_loop_has_not_waited() -> None:
    waits = [
        step
        for path in traced_paths()
        for step in path.steps
        if (step.lane, step.name) == (Lane.LEADER_WRITER, "wake up")
    ]
    assert [step.seconds for step in waits] == [0.0] * 3


def test_critical_path_page_lists_the_median_of_each_step() -> None:
    found = rows(traced_paths())
    assert [row.begin_us for row in found] == sorted(row.begin_us for row in found)
    traced = LoadTrace("1 KiB 1x1", 3, 3300.0, 3.5, 250.0, (500.0, 300.0, 300.0), (4.0, 2.0, 2.0), 1.5, found)
    page = section([traced], command="c", machine="m", date="d")
    for row in found:
        assert f"| {row.lane} | {row.name} |" in page
    assert "p50 at the client 3.50 ms, of it 3.30 ms" in page
    assert "images/critical-path-1x1.svg" in page
    drawn = ElementTree.fromstring(picture(traced))
    titles = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert "write and sync: 1,000 us" in titles


def test_shares_count_only_steps_before_the_reply() -> None:
    counted = shares(
        [
            Row(Lane.LEADER, "receive", 0.0, 100.0, 100.0, 120.0, True),
            Row(Lane.LEADER_WRITER, "write and sync", 0.0, 900.0, 900.0, 900.0, False),
            Row(Lane.FOLLOWER, "wake up with the entries", 100.0, 150.0, 50.0, 60.0, True),
            Row(Lane.FOLLOWER_WRITER, "write and sync", 150.0, 350.0, 200.0, 300.0, True),
            Row(Lane.FOLLOWER, "receive", 350.0, 380.0, 30.0, 30.0, True),
        ]
    )
    assert list(counted.values()) == [50.0, 200.0, 100.0, 30.0]
