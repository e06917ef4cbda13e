"""docs/spark.md: every example in it does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mq.client.message import Message
from tests.spark.stage import Stage

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def examples(text: str) -> list[tuple[int, str]]:
    """The line and the source of each Python example."""
    return [
        (text.count("\n", 0, found.start()) + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def expected_output(source: str) -> list[str]:
    """What the comments of an example promise, line by line."""
    return re.findall(r"# -> (.*)$", source, re.MULTILINE)


def test_every_example_does_what_it_says(
    session: Any, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.create("Orders", 8)
    stage.send("Orders", [b"%d" % number for number in range(1, 1001)])
    stage.create("Squares", 4)
    bills = stage.topic("Bills")
    stage.give_up(Message(bills, b"x", tags="late"), "billing")
    found = examples(GUIDE.read_text())
    assert len(found) >= 7, "the guide has lost its examples"
    names: dict[str, Any] = {}
    for line, source in found:
        # The line numbers are those of the guide, in tracebacks too.
        text = "\n" * line + source.replace("127.0.0.1:9876", stage.namesrv).replace('"archive/', f'"{tmp_path}/')
        exec(compile(text, str(GUIDE), "exec"), names)
        shown = capsys.readouterr().out.splitlines()
        tables = [each for each in shown if each.startswith(("+", "|", "only showing"))]
        assert [each for each in shown if each and each not in tables] == expected_output(source), f"at line {line}"
        if "%DLQ%" in text:
            assert any(bills in each and "late" in each for each in tables)
