"""The report of the SDK against RocketMQ: what it plays, and what it says of differences."""

from __future__ import annotations

import pytest
import trio

from tests.interop import sdk
from tests.interop.sdk import NOT_IN_ROCKETMQ, PASS, Played, examples, markdown
from tests.support.sdk_scenarios import SCENARIOS


def test_scenario_names_are_unique() -> None:
    names = [*(name for name, _ in examples()), *SCENARIOS, *NOT_IN_ROCKETMQ]
    assert len(names) == len(set(names))
    assert "guide: Transactions" in names


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, PASS),
        (KeyError("RAFTMQ_FAILURE"), "differs: dead letters do not say why they are dead: no properties RAFTMQ_..."),
        (ExceptionGroup("two", [ValueError("a\nb")]), "differs: ValueError: a b"),
    ],
)
def test_failed_scenario_reports_the_difference(error: Exception | None, outcome: str) -> None:
    async def play() -> None:  # noqa: ASYNC910
        if error is not None:
            raise error

    assert trio.run(sdk._played, "guide: Errors", "5.5.0", play) == Played("guide: Errors", "5.5.0", outcome)


def test_example_with_different_output_fails() -> None:
    async def play() -> None:
        await sdk._play_example("print(1)  # -> 1\nprint(2)  # -> 3\n", "127.0.0.1:1", {})

    played = trio.run(sdk._played, "x", "5.5.0", play)
    assert played.outcome == "differs: AssertionError: prints '2' instead of '3'"


def test_report_has_a_column_for_each_version() -> None:
    text = markdown([Played("a", "5.3.3", PASS), Played("a", "5.5.0", "differs: x | y")])
    assert "| a | pass | differs: x \\| y |" in text
    assert "5.3.3: 1 of 1 pass; 5.5.0: 0 of 1 pass." in text
