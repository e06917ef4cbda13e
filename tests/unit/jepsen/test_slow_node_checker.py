"""The checker of groups with one slow replica."""

from __future__ import annotations

from checkers.events import NEMESIS
from checkers.slow_node import check_slow_node
from tests.unit.jepsen.histories import QUEUE, Script

FAST, SLOW = 0.01, 0.6


def send(script: Script, number: int, node: str, seconds: float) -> None:
    script.add(number, "invoke", "send", k=QUEUE, v=f"{number}.0.0", n=node)
    script.now += int(seconds * 1e9)
    script.add(number, "ok", "send", k=QUEUE, v=f"{number}.0.0", n=node, o=number)


def run(others: float, itself: float = SLOW, *, calm: float = FAST) -> Script:
    """Sends without faults, then with a slow n0: to n1 and to n0."""
    script = Script(nemeses=("slow-disk",))
    for number in range(100):
        send(script, number, "n1", calm)
    what = {"id": 0, "kind": "slow-disk", "what": "slow n0", "nodes": ["n0"], "majority": True}
    script.add(NEMESIS, "info", "begins", v=what)
    for number in range(100, 300, 2):
        send(script, number, "n1", others)
        send(script, number + 1, "n0", itself)
    script.add(NEMESIS, "info", "ends", v={"id": 0})
    return script


def test_sends_to_the_slow_replica_may_be_slow() -> None:
    assert check_slow_node(run(FAST).history()).valid is True


def test_group_that_waits_for_its_slowest_replica_is_broken() -> None:
    result = check_slow_node(run(SLOW).history())
    assert result.anomalies == {"slowed-by-one": 1}
    assert "took 601 ms, 11 ms without a fault" in result.examples["slowed-by-one"][0]


def test_group_that_is_always_slow_is_not_slowed() -> None:
    assert check_slow_node(run(SLOW, calm=SLOW).history()).valid is True


def test_slow_node_verdict_needs_enough_sends() -> None:
    script = Script(nemeses=("slow-disk",))
    send(script, 1, "n1", FAST)
    assert check_slow_node(script.history()).valid == "unknown"
