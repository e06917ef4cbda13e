"""The table of planted mistakes that real runs noticed or did not."""

from __future__ import annotations

import pytest

from chaos.planted.__main__ import names
from jepsen.nemeses import NEMESES
from jepsen.planted_bugs import BEGIN, END, HEAD, PAGE, ROWS, SCENARIO_ROWS, SCENARIOS_BEGIN, SCENARIOS_HEAD, put_lines
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import CALM
from jepsen.workloads import WORKLOADS


def test_rows_name_existing_mistakes_and_workloads() -> None:
    for row in ROWS:
        assert row.mistake in names()
        assert row.workload in WORKLOADS
        assert row.nemesis in (*NEMESES, CALM)
    for row in SCENARIO_ROWS:
        assert row.mistake in names()
        assert row.workload in WORKLOADS
        assert row.scenario in SCENARIOS


def test_lines_replace_older_ones_and_leave_others() -> None:
    page = f"text\n{BEGIN}{HEAD}| `a` | old |\n| `c` | kept |\n{END}more\n"
    assert put_lines(page, ["| `b` | new |", "| `a` | new |"]) == (
        f"text\n{BEGIN}{HEAD}| `a` | new |\n| `b` | new |\n| `c` | kept |\n{END}more\n"
    )


def test_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no '<!-- written"):
        put_lines("text", [])


def test_page_has_the_table() -> None:
    assert put_lines(PAGE.read_text(), [])
    assert put_lines(PAGE.read_text(), [], begin=SCENARIOS_BEGIN, head=SCENARIOS_HEAD)
