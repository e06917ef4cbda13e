"""docs/spark.md, then docs/spark-sink.md: every example in them does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mq.client.message import Message
from tests.spark.stage import Stage

ROOT = Path(__file__).parents[2]
PAGES = ("spark.md", "spark-sink.md")
LEFT_OUT = re.compile(r"^(pip install|raftmq dev|zip|spark-submit) ", re.MULTILINE)
"""Commands that make what the tests have already: an environment, a cluster."""


def examples(text: str) -> list[tuple[int, str, str]]:
    """The line, the language and the source of each example."""
    return [
        (text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def expected_output(source: str) -> list[str]:
    """What the comments of an example promise, line by line."""
    return re.findall(r"# -> (.*)$", source, re.MULTILINE)


def run_commands(commands: str, namesrv: str) -> None:
    """Run commands of a page as a shell does; each must succeed."""
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'raftmq() {{ "{sys.executable}" -m mq.cli "$@"; }}\n{commands}'],
        cwd=ROOT,
        env={**os.environ, "RAFTMQ_NAMESRV": namesrv},
        timeout=180,
        check=True,
    )


def test_examples_of_the_guide_print_their_stated_output(
    session: Any, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bills = stage.topic("Bills")
    stage.give_up(Message(bills, b"x", tags="late"), "billing")
    for page in PAGES:
        file = ROOT / "docs" / page
        found = examples(file.read_text())
        assert {language for _, language, _ in found} == {"python", "sh"}, f"{page} has examples of another kind"
        names: dict[str, Any] = {}
        for line, language, source in found:
            if language == "sh":
                if not LEFT_OUT.search(source):
                    run_commands(source, stage.namesrv)
                continue
            text = source.replace("127.0.0.1:9876", stage.namesrv)
            text = re.sub(r'"(archive|checkpoints)/', rf'"{tmp_path}/\1/', text)
            # The line numbers are those of the page, in tracebacks too.
            exec(compile("\n" * line + text, str(file), "exec"), names)
            shown = capsys.readouterr().out.splitlines()
            tables = [each for each in shown if each.startswith(("+", "|", "only showing"))]
            said = [each for each in shown if each and each not in tables]
            assert said == expected_output(source), f"{page} at line {line}"
            if "%DLQ%" in text:
                assert any(bills in each and "late" in each for each in tables)
