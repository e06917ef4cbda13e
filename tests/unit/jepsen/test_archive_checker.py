"""The checker of runs whose brokers archive their log."""

from __future__ import annotations

from checkers.archived import check_archive
from checkers.events import NEMESIS, RUN
from tests.unit.jepsen.histories import Script


def run(*, sends: int, seconds: float = 5.0, ranges: int = 1) -> Script:
    """A store that is gone for so long, while so many messages are acknowledged."""
    script = Script(nemeses=("store-gone",))
    what = {"id": 0, "kind": "store-gone", "what": "store-gone for a while", "nodes": ["n0"], "majority": True}
    script.add(NEMESIS, "info", "begins", v=what)
    for number in range(sends):
        script.sent(f"1.{number}.0", number)
    script.now += int(seconds * 1e9)
    script.add(NEMESIS, "info", "ends", v={"id": 0})
    script.add(RUN, "info", "store-ranges", v=ranges)
    return script


def test_messages_are_acknowledged_while_the_store_is_gone() -> None:
    result = check_archive(run(sends=3).history())
    assert result.valid is True
    assert result.counts["acknowledged meanwhile"] == 3


def test_group_that_waits_for_the_store_is_broken() -> None:
    result = check_archive(run(sends=0).history())
    assert result.anomalies == {"stalled-by-store": 1}
    assert "for 5.0 s" in result.examples["stalled-by-store"][0]


def test_short_fault_of_the_store_may_see_no_message() -> None:
    assert check_archive(run(sends=0, seconds=1.0).history()).valid is True


def test_run_that_read_nothing_from_the_archive_is_unknown() -> None:
    assert check_archive(run(sends=3, ranges=0).history()).valid == "unknown"
