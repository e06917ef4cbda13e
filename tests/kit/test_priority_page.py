"""The example of docs/priority.md, on the test kit: its command, and its program as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.testing import running_kit

PAGE = Path(__file__).parents[2] / "docs" / "priority.md"


def test_alarm_of_the_page_overtakes_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    _, _, rest = text.partition("```python\n")
    program, _, _ = rest.partition("```\n")
    [command] = re.findall(r"^\$ raftmq (topic create .*)$", text, re.MULTILINE)
    with running_kit() as kit:
        done = CliRunner().invoke(app, [*shlex.split(command), "--namesrv", kit.namesrv])
        assert done.exit_code == 0, done.output
        exec(compile(program.replace("127.0.0.1:9876", kit.namesrv), str(PAGE), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines() == ["9 b'an alarm'", "None b'a report'"]
