"""The checker for messages that consumers passed although a replica had them."""

from __future__ import annotations

import pytest

from checkers.skipped import check_skipped
from tests.unit.jepsen.histories import QUEUE, Script

A, B, C = "1.0.10", "1.1.10", "1.2.10"


@pytest.fixture
def script() -> Script:
    return Script(sent=(A, B, C))


def final(script: Script, node: str, values: list[str], first: int = 0) -> None:
    """One replica's queue, which begins at ``first``."""
    script.add(90, "invoke", "final-read", k=QUEUE, n=node, o=0)
    if first:
        script.add(90, "fail", "final-read", k=QUEUE, n=node, err="begins later")
        script.add(90, "ok", "removed", k=QUEUE, n=node, o=first)
        script.add(90, "invoke", "final-read", k=QUEUE, n=node, o=first)
    script.add(90, "ok", "final-read", k=QUEUE, n=node, v=[[first + n, value] for n, value in enumerate(values)])


def test_message_that_one_replica_still_has_was_skipped(script: Script) -> None:
    script.received(A, 0)
    script.received(C, 2)
    final(script, "n0", [A, B, C])
    final(script, "n1", [C], first=2)
    final(script, "n2", [C], first=2)
    result = check_skipped(script.history())
    assert result.anomalies == {"skipped-though-held": 1}
    (example,) = result.examples["skipped-though-held"]
    assert "n0 had it (n1 begins at 2, n2 begins at 2)" in example


def test_message_that_no_replica_has_was_not_skipped(script: Script) -> None:
    script.received(A, 0)
    script.received(C, 2)
    for node in ("n0", "n1", "n2"):
        final(script, node, [C], first=2)
    assert check_skipped(script.history()).anomalies == {}


def test_unreached_queue_end_is_not_skipped(script: Script) -> None:
    script.received(A, 0)
    for node in ("n0", "n1", "n2"):
        final(script, node, [A, B, C])
    assert check_skipped(script.history()).anomalies == {}


def test_late_delivery_is_not_reported_as_skipped(script: Script) -> None:
    for value, offset in ((A, 0), (C, 2), (B, 1)):
        script.received(value, offset)
    for node in ("n0", "n1", "n2"):
        final(script, node, [A, B, C])
    assert check_skipped(script.history()).anomalies == {}
