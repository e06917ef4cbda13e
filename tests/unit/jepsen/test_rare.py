"""Rare states are told from the logs of brokers."""

from __future__ import annotations

from jepsen.rare import RARE, met

LINES = (
    '{"event": "role_changed", "cause": "majority_silent", "node_id": "n0"}',
    '{"event": "role_changed", "cause": "elected"}',
    '{"event": "log_repaired", "pos": 12}',
    '{"event": "log_repaired", "pos": 24}',
    "Traceback (most recent call last):",
    '{"event": "log_repai',
)


def test_states_are_counted_by_event_and_fields() -> None:
    assert met(LINES) == {
        "a leader resigned because it heard no majority": 1,
        "damaged entries came back from peers": 2,
    }
    assert met(LINES).keys() <= RARE.keys()
