"""The programs of docs/lite-topics.md and docs/priority.md do what the pages say, on the test kit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.client.sync import SyncAdmin
from mq.testing import running_kit

LITE_TOPICS = Path(__file__).parents[2] / "docs" / "lite-topics.md"


def test_program_of_the_page_answers_each_session_in_order() -> None:
    _, _, rest = LITE_TOPICS.read_text().partition("```python\n")
    program, _, _ = rest.partition("```\n")
    with running_kit() as kit:
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(program, str(LITE_TOPICS), "exec"), names)
        names["NAMESRV"] = kit.namesrv
        answers = anyio.run(names["main"])
    assert sorted(answers, key=lambda answer: answer.partition(":")[0]) == [
        "session-17: Who are you?",
        "session-17: And who am I?",
        "session-18: What time is it?",
    ]


@pytest.mark.parametrize("replicas", [1, 3])
def test_brokers_of_a_kit_can_do_everything_from_the_start(replicas: int) -> None:
    """The format level of their group rose a second later, and lite topics were refused until then."""
    with running_kit(replicas=replicas) as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("Sessions", queues=1, attributes={"message.type": "LITE"})
        assert "Sessions" in admin.topics()


PRIORITY = Path(__file__).parents[2] / "docs" / "priority.md"


def test_priority_guide_delivers_the_alarm_before_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    text = PRIORITY.read_text()
    _, _, rest = text.partition("```python\n")
    program, _, _ = rest.partition("```\n")
    [command] = re.findall(r"^\$ raftmq (topic create .*)$", text, re.MULTILINE)
    with running_kit() as kit:
        done = CliRunner().invoke(app, [*shlex.split(command), "--namesrv", kit.namesrv])
        assert done.exit_code == 0, done.output
        exec(compile(program.replace("127.0.0.1:9876", kit.namesrv), str(PRIORITY), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines() == ["9 b'an alarm'", "None b'a report'"]
