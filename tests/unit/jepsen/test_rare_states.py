"""Rare states are found in the logs of brokers and in histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.events import RUN
from jepsen.report import rare_states
from jepsen.report.rare_states import IN_HISTORIES, IN_LOGS, count_states, met_in_history
from tests.unit.jepsen.histories import Script

LINES = (
    '{"event": "role_changed", "cause": "majority_silent", "node_id": "n0"}',
    '{"event": "role_changed", "cause": "elected"}',
    '{"event": "log_repaired", "pos": 12}',
    '{"event": "log_repaired", "pos": 24}',
    "Traceback (most recent call last):",
    '{"event": "log_repai',
)


def test_states_are_counted_by_event_and_fields() -> None:
    assert count_states(LINES) == {
        "a leader resigned because it heard no majority": 1,
        "damaged entries came back from peers": 2,
    }
    assert count_states(LINES).keys() <= IN_LOGS.keys()


VALUE = "1.0.0"


def asked(script: Script, name: str, *, process: int = 1, **fields: object) -> Callable[[], None]:
    """Begin an operation; the function that is returned ends it."""
    script.add(process, "invoke", name, **fields)
    return lambda: script.add(process, "ok", name, **fields)


def half_then_check(script: Script, between: Callable[[], None]) -> None:
    asked(script, "half", v=VALUE)()
    between()
    script.add(2, "ok", "check", v=[VALUE, "commit"])


def half_then_end(script: Script, between: Callable[[], None]) -> None:
    asked(script, "half", v=VALUE)()
    between()
    asked(script, "end-transaction", v=[VALUE, "commit"])()


def schedule_then_recall(script: Script, between: Callable[[], None]) -> None:
    asked(script, "schedule", v=VALUE, o=1000)()
    between()
    asked(script, "recall", v=VALUE)()


def pop_then_ack(script: Script, between: Callable[[], None]) -> None:
    script.add(1, "invoke", "pop", o=20)
    script.add(1, "ok", "pop", v=[["Log/0", 0, VALUE]])
    between()
    asked(script, "ack", v=VALUE)()


def handle(script: Script, between: Callable[[], None]) -> None:
    end = asked(script, "handle", k="Order/0", o=0)
    between()
    end()


def send_in_doubt(script: Script, between: Callable[[], None]) -> None:
    script.add(1, "invoke", "send", k="Log/0", v=VALUE)
    between()
    script.add(1, "info", "send", k="Log/0", v=VALUE)


@pytest.mark.parametrize(
    ("play", "state"),
    [
        (half_then_check, rare_states.CHECKED_BACK),
        (half_then_end, rare_states.ENDED),
        (schedule_then_recall, rare_states.RECALLED),
        (pop_then_ack, rare_states.ACKNOWLEDGED),
        (handle, rare_states.HANDLED),
        (send_in_doubt, rare_states.IN_DOUBT),
    ],
)
def test_state_counts_if_the_leader_changed(play: Callable[[Script, Callable[[], None]], None], state: str) -> None:
    def counts(later: str) -> dict[str, int]:
        script = Script()
        script.add(RUN, "info", "role", n="n0", v=["leader", "1"])
        play(script, lambda: script.add(RUN, "info", "role", n=later, v=["leader", "2"]))
        return dict(met_in_history(script.history()))

    nothing = dict.fromkeys(IN_HISTORIES, 0)
    assert counts("n1") == nothing | {state: 1}
    assert counts("n0") == nothing


def test_first_leader_is_not_a_change_of_leader(script: Script) -> None:
    half_then_check(script, lambda: script.add(RUN, "info", "role", n="n0", v=["leader", "1"]))
    assert met_in_history(script.history())[rare_states.CHECKED_BACK] == 0


def test_removed_messages_count_at_a_follower_only(script: Script) -> None:
    script.add(RUN, "info", "role", n="n0", v=["leader", "1"])
    for node in ("n0", "n1"):
        script.add(60, "ok", "removed", k="Log/0", n=node, o=7)
    assert met_in_history(script.history())[rare_states.REMOVED] == 1
