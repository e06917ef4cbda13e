"""The program of docs/lite-topics.md, on the test kit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio

from mq.testing import running_kit

PAGE = Path(__file__).parents[2] / "docs" / "lite-topics.md"


def test_the_program_of_the_page_answers_each_session_in_order() -> None:
    _, _, rest = PAGE.read_text().partition("```python\n")
    program, _, _ = rest.partition("```\n")
    with running_kit() as kit:
        time.sleep(2)  # the replica has said by then what it understands
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(program, str(PAGE), "exec"), names)
        names["NAMESRV"] = kit.namesrv
        answers = anyio.run(names["main"])
    assert sorted(answers, key=lambda answer: answer.partition(":")[0]) == [
        "session-17: Who are you?",
        "session-17: And who am I?",
        "session-18: What time is it?",
    ]
