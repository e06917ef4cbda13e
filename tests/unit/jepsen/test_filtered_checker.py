"""The checkers of the workload "filtered", with histories that break its promises."""

from __future__ import annotations

from checkers.filtered import check_filtered, check_filtered_offsets
from tests.unit.jepsen.histories import QUEUE, Script

PASSES, OTHER = "1.1.0", "1.2.0"


def told(script: Script, offset: int) -> None:
    """A replica said where the group is."""
    script.add(90, "invoke", "stored", k=QUEUE, n="n0", v="G")
    script.add(90, "ok", "stored", k=QUEUE, n="n0", v="G", o=offset)


def test_only_matching_messages_must_be_consumed() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    assert check_filtered(script.history()).valid is True


def test_checker_finds_consumed_filtered_messages() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    script.received(OTHER, 1)
    assert check_filtered(script.history()).anomalies == {"not-filtered": 1}


def test_checker_finds_missing_matching_messages() -> None:
    script = Script(sent=(PASSES, "1.4.0"))
    script.received("1.4.0", 1)
    assert sum(check_filtered(script.history()).anomalies.values()) == 1


def test_offset_after_received_messages_is_valid() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    told(script, 2)
    assert check_filtered_offsets(script.history()).valid is True


def test_checker_finds_an_offset_passing_a_message() -> None:
    script = Script(sent=(PASSES, "1.4.0"))
    script.received("1.4.0", 1)
    told(script, 2)
    script.received(PASSES, 0)  # too late: a crash of the member would have lost it
    assert check_filtered_offsets(script.history()).anomalies == {"passed-over": 1}


def test_verdict_without_offsets_is_unknown() -> None:
    assert check_filtered_offsets(Script().history()).valid == "unknown"
