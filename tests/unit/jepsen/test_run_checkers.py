"""Whether servers did what they must not, and whether a run tested anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.coverage import ACKNOWLEDGED_MIN, check_coverage
from checkers.events import RUN
from checkers.servers import MEMORY_BYTES_MAX, check_servers, errors_in
from checkers.verdict import Result
from tests.unit.jepsen.histories import NODES, Script

A, B = "1.1.10", "1.2.10"


def verified(script: Script, verdict: str = "intact") -> None:
    for node in NODES:
        script.add(RUN, "info", "verified", n=node, v=verdict)


def test_servers_that_kept_running_are_valid(script: Script) -> None:
    verified(script)
    script.add(RUN, "info", "compared", v=[])
    script.add(RUN, "info", "memory", n="n1", v=MEMORY_BYTES_MAX)
    result = check_servers(script.history())
    assert result.valid is True
    assert (result.counts["logs compared byte by byte"], result.counts["MiB of memory at most"]) == (1, 300)


@pytest.mark.parametrize(
    ("anomaly", "fields"),
    [
        ("ended-by-itself", {"name": "ended", "err": "exit code 1"}),
        ("error-in-log", {"name": "said", "v": "AssertionError"}),
        ("not-repaired", {"name": "not-repaired", "v": ["00000000000000000000"]}),
        ("not-recovered", {"name": "not-recovered", "err": "no leader within 60 s"}),
        ("misbehaved", {"name": "misbehaved", "err": "leads in term 3 while n1 has nothing"}),
        ("logs-differ", {"name": "compared", "v": ["the logs of n0 and n1 differ in the file 00000000000000000000"]}),
        ("too-much-memory", {"name": "memory", "v": MEMORY_BYTES_MAX + 1}),
    ],
)
def test_checker_finds_unexpected_server_events(script: Script, anomaly: str, fields: dict[str, Any]) -> None:
    verified(script)
    script.add(RUN, "info", fields.pop("name"), n="n1", **fields)
    assert check_servers(script.history()).anomalies == {anomaly: 1}


def test_checker_finds_a_damaged_log(script: Script) -> None:
    verified(script, "damaged")
    assert check_servers(script.history()).anomalies == {"log-damaged": 3}


def test_log_that_was_not_verified_leaves_the_verdict_open() -> None:
    assert check_servers(Script().history()).valid == "unknown"


def test_only_unexplained_lines_are_broker_errors() -> None:
    lines = [
        '{"level":"error","event":"leader_lost"}\n',
        '{"level":"err',
        "Traceback (most recent call last):\n",
        "AssertionError: 3 entries, 4 were due\n",
    ]
    assert list(errors_in(lines)) == [lines[2].strip(), lines[3].strip()]


def covered(*faults: dict[str, Any], nemeses: Sequence[str] = ("kill",), nodes: Sequence[str] = NODES) -> Result:
    """What is said of a run with these faults of kind kill, behind which enough is sent."""
    script = Script(nemeses=nemeses, nodes=nodes)
    for fault in faults:
        script.fault("kill", **fault)
    sent_enough(script)
    return check_coverage(script.history())


def sent_enough(script: Script) -> None:
    for number in range(ACKNOWLEDGED_MIN):
        script.sent(f"5.{number}.10", number, process=5)


def test_run_that_tested_something_is_valid() -> None:
    result = covered({"during": [A, B]})
    assert result.valid is True
    assert result.counts["acknowledged under kill"] == 2


def test_run_without_faults_is_valid() -> None:
    assert covered(nemeses=["calm"]).valid is True


def test_acknowledgements_are_not_expected_before_a_new_election() -> None:
    assert covered({"seconds": 4.9}).valid is True


def test_acknowledgements_are_not_expected_without_a_majority() -> None:
    assert covered({"majority": False}).valid is True


def test_run_without_acknowledgements_tested_nothing() -> None:
    result = check_coverage(Script().history())
    assert result.unknown == ["nothing was tested: 0 messages acknowledged"]


def test_run_without_acknowledgements_under_its_fault_tested_nothing() -> None:
    (why,) = covered({"seconds": 2.5}, {"seconds": 2.5}).unknown
    assert why == "nothing was tested: no message was acknowledged under a fault of kind kill"


def test_run_without_acknowledgements_after_its_fault_tested_nothing() -> None:
    script = Script(nemeses=["kill"])
    sent_enough(script)
    script.fault("kill", majority=False)
    (why,) = check_coverage(script.history()).unknown
    assert why == "nothing was tested: no message was acknowledged after a fault of kind kill"


@pytest.mark.parametrize("nemeses", ["kill", "calm"], ids=["planned", "not planned"])
def test_unobserved_fault_leaves_the_verdict_open(nemeses: str) -> None:
    (why,) = covered({"seen": None, "during": [A]}, nemeses=[nemeses]).unknown
    assert why.endswith("was not seen to take effect")


def test_fault_kind_that_never_occurred_leaves_the_verdict_open() -> None:
    (why,) = covered({"during": [A]}, nemeses=["kill", "pause"]).unknown
    assert why == "nothing was tested: no fault of kind pause"


def test_fault_that_never_ended_leaves_the_verdict_open() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", during=[A])
    script.fault("kill", during=[B])
    sent_enough(script)
    del script.events[max(at for at, event in enumerate(script.events) if event.f == "ends")]
    (why,) = check_coverage(script.history()).unknown
    assert why.endswith("was never over")


def test_run_without_a_replica_leaves_the_verdict_open() -> None:
    assert covered(nemeses=["calm"], nodes=[]).unknown == ["nothing was tested: the run had no replica"]
