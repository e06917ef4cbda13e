"""The program of docs/lite-topics.md, on the test kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from mq.client.sync import SyncAdmin
from mq.testing import running_kit

PAGE = Path(__file__).parents[2] / "docs" / "lite-topics.md"


def test_program_of_the_page_answers_each_session_in_order() -> None:
    _, _, rest = PAGE.read_text().partition("```python\n")
    program, _, _ = rest.partition("```\n")
    with running_kit() as kit:
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(program, str(PAGE), "exec"), names)
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
