"""The demonstration in `docs/filters.md` prints what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mq.client import Admin
from mq.testing import open_kit
from tests.support.filter_servers import filter_server
from tests.support.guide_examples import examples, expected_output

GUIDE = Path(__file__).parents[3] / "docs" / "filters.md"


async def test_filter_demonstration_prints_its_stated_output(capsys: pytest.CaptureFixture[str]) -> None:
    ((line, source),) = [each for each in examples(GUIDE.read_text()) if "trio.run" in each[1]]
    assert len([each for each in source.splitlines() if each]) <= 11
    names: dict[str, Any] = {}
    async with open_kit() as kit:
        async with Admin(kit.namesrv) as admin:
            await admin.create_topic("Orders")
        async with filter_server(kit, "Orders"):
            text = source.replace("127.0.0.1:9876", kit.namesrv).replace("trio.run(main)\n", "")
            exec(compile(text, f"{GUIDE.name}:{line}", "exec"), names)
            capsys.readouterr()  # what the servers have logged
            with capture_logs():
                await names["main"]()
            printed = capsys.readouterr().out
    assert printed.splitlines() == expected_output(source)
