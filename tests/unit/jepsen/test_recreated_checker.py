"""The checker of topics that are made again under their name."""

from __future__ import annotations

import pytest

from checkers.recreated import check_recreated
from tests.unit.jepsen.histories import NODES, Script

OLD, NEW = "1.0.0", "1.1.0"
PUSH, PULL = 50, 51


@pytest.fixture
def script() -> Script:
    """Two groups have got the message of the old topic, and the new one has a message at the same offset."""
    script = Script()
    for process, group in ((PUSH, "push"), (PULL, "pull")):
        script.add(process, "invoke", "join")
        script.add(process, "ok", "join", v=group)
    script.sent(OLD, 0)
    for process in (PUSH, PULL):
        script.received(OLD, 0, process=process)
    script.add(9, "invoke", "recreate", v="1")
    script.add(9, "ok", "recreate", v="1")
    script.sent(NEW, 0)
    return script


def test_groups_that_get_both_topics_are_right(script: Script) -> None:
    for process in (PUSH, PULL):
        script.received(NEW, 0, process=process)
    script.final_everywhere([NEW])
    result = check_recreated(script.history())
    assert result.valid is True
    assert result.counts["acknowledged in topic 2"] == 1


def test_checker_finds_a_group_continuing_at_the_old_offset(script: Script) -> None:
    script.received(NEW, 0, process=PULL)
    script.final_everywhere([NEW])
    result = check_recreated(script.history())
    assert result.anomalies == {"unseen": 1}
    assert result.examples["unseen"] == ["push never got 1.1.0 at Log/0@0 of topic 2"]


def test_checker_finds_a_replica_with_the_old_topic(script: Script) -> None:
    for process in (PUSH, PULL):
        script.received(NEW, 0, process=process)
    for node in NODES:
        script.final([OLD] if node == "n1" else [NEW], node=node)
    assert check_recreated(script.history()).anomalies == {"came-back": 1, "lost-write": 1}


def test_run_without_a_recreated_topic_tested_nothing() -> None:
    script = Script(sent=[OLD])
    script.final_everywhere([OLD])
    assert check_recreated(script.history()).valid == "unknown"
