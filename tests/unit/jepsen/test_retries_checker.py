"""The checker of messages that are given back, with histories that break its promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from checkers.retries import check_retries
from tests.unit.jepsen.histories import NODES, Script

A, B, C = "1.0.0", "1.1.0", "1.2.0"


def tried(script: Script, value: str, *counts: int, handled: bool = False) -> None:
    """Given back with each count, but with ``handled`` the last one."""
    for count in counts:
        is_handled = handled and count == counts[-1]
        script.add(20, "ok", "try", v=value, o=count, err=None if is_handled else "given back")


def dead(script: Script, values: Sequence[str], nodes: Sequence[str] = NODES) -> None:
    for node in nodes:
        for part in ([[offset, value, 7] for offset, value in enumerate(values)], []):
            script.add(90, "invoke", "dead-read", n=node)
            script.add(90, "ok", "dead-read", n=node, v=part)


def usual() -> Script:
    """A is handled at the second attempt, B never."""
    script = Script(sent=(A, B))
    tried(script, A, 0, 1, handled=True)
    tried(script, B, 0, 1, 2, 3)
    return script


def test_messages_that_are_handled_or_dead_are_valid() -> None:
    script = usual()
    tried(script, A, 1, handled=True)  # at least once
    dead(script, [B])
    result = check_retries(script.history())
    assert result.valid is True
    assert result.counts["dead letters"] == 1


def never_handed_out(script: Script) -> None:
    script.sent(C, 2)
    dead(script, [B])


def given_back_and_lost(script: Script) -> None:
    script.sent(C, 2)
    tried(script, C, 0, 1)
    dead(script, [B])


def dead_too_early(script: Script) -> None:
    script.sent(C, 2)
    tried(script, C, 0, 1, 2)
    dead(script, [B, C])


def dead_twice(script: Script) -> None:
    dead(script, [B, B])


def dead_at_some(script: Script) -> None:
    dead(script, [B], ("n0", "n1"))
    dead(script, [], ("n2",))


def one_more(script: Script) -> None:
    tried(script, B, 4)
    dead(script, [B])


def count_skipped(script: Script) -> None:
    script.sent(C, 2)
    tried(script, C, 0, 2, handled=True)
    dead(script, [B])


def of_nobody(script: Script) -> None:
    dead(script, [B, C])


def dead_with_other_bytes(script: Script) -> None:
    dead(script, [B], ("n0", "n1"))
    script.add(90, "invoke", "dead-read", n="n2")
    script.add(90, "ok", "dead-read", n="n2", v=[[0, B, 8]])
    dead(script, [], ("n2",))


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("dead-letters-differ", dead_with_other_bytes),
        ("unseen", never_handed_out),
        ("given-back-and-lost", given_back_and_lost),
        ("dead-too-early", dead_too_early),
        ("dead-letters-differ", dead_at_some),
        ("dead-twice", dead_twice),
        ("one-more", one_more),
        ("count-skipped", count_skipped),
        ("unexpected", of_nobody),
    ],
)
def test_checker_finds_wrong_retries(anomaly: str, broken: Callable[[Script], None]) -> None:
    script = usual()
    broken(script)
    assert check_retries(script.history()).anomalies == {anomaly: 1}


def test_message_may_die_once_for_each_final_give_back() -> None:
    script = usual()
    tried(script, B, 3)
    dead(script, [B, B])
    assert check_retries(script.history()).valid is True


def test_under_faults_a_dead_letter_may_be_stored_twice() -> None:
    script = usual()
    script.fault("kill")
    dead(script, [B, B])
    result = check_retries(script.history())
    assert (result.anomalies, result.counts["dead letters stored again"]) == ({}, 1)


def test_dead_letters_that_were_not_read_leave_the_verdict_open() -> None:
    script = usual()
    dead(script, [B], ("n0", "n1"))
    assert "the dead letters of n2 were not read to the end" in check_retries(script.history()).unknown


def test_message_missing_in_unread_dead_letters_leaves_verdict_open() -> None:
    for nodes in ((), ("n0",)):
        script = usual()
        dead(script, [B], nodes)
        result = check_retries(script.history())
        assert result.anomalies == {}
        assert "the dead letters of n2 were not read to the end" in result.unknown
