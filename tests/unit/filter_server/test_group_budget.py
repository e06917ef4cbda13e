"""How much of a processor a group may use."""

from __future__ import annotations

from mq.filter_server.group_budget import GroupBudget


def test_group_that_uses_less_than_its_share_does_not_wait() -> None:
    budget = GroupBudget(0.5, now=0.0)
    for second in range(100):
        assert budget.wait_seconds(second) == 0
        budget.spend(0.5, second)
    assert budget.wait_seconds(100.0) == 0


def test_group_above_its_share_waits() -> None:
    budget = GroupBudget(0.5, now=0.0)
    budget.spend(1.5, 0.0)
    assert budget.wait_seconds(0.0) == 2.0
    assert budget.wait_seconds(1.0) == 1.0
    assert budget.wait_seconds(2.0) == 0


def test_group_budget_saves_at_most_one_second() -> None:
    budget = GroupBudget(0.5, now=0.0)
    budget.spend(1.0, 1000.0)
    assert budget.wait_seconds(1000.0) == 1.0
