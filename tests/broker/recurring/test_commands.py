"""`raftmq schedule`, `export` and `import` against a broker of the test kit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.client.sync import SyncAdmin
from mq.testing import SyncKit, running_kit

DAILY = ("daily", "T", "--cron", "0 8 * * *", "--tz", "Europe/Vienna", "--body", "x", "--property", "a=b", "--key", "k")


def run(kit: SyncKit, *arguments: str, code: int = 0, given: str = "") -> str:
    return run_at(kit.namesrv, *arguments, code=code, given=given)


def run_at(namesrv: str, *arguments: str, code: int = 0, given: str = "") -> str:
    done = CliRunner().invoke(app, [*arguments, "--namesrv", namesrv], input=given)
    if isinstance(done.exception, CommandFailed):
        assert done.exception.exit_code == code, done.exception
        return str(done.exception)
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return done.stdout


def listed(kit: SyncKit) -> Any:
    return json.loads(run(kit, "schedule", "list", "--json"))


def test_commands_create_and_replace_schedules() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        said = run(kit, "schedule", "create", *DAILY).splitlines()
        assert said[0] == "created schedule daily in broker-a"
        assert said[1].count("T07:00:00.000Z") + said[1].count("T06:00:00.000Z") == 3
        assert "--replace replaces it" in run(kit, "schedule", "create", *DAILY, code=1)
        assert "replaced schedule daily" in run(kit, "schedule", "create", *DAILY, "--tags", "t", "--replace")
        run(kit, "schedule", "create", "often", "T", "--every", "30s", "--paused", given="from standard input")
        [daily, often] = listed(kit)
        assert (daily["rule"], daily["enabled"], daily["tags"]) == ("cron 0 8 * * * Europe/Vienna", True, "t")
        assert (often["rule"], often["enabled"], often["next"]) == ("every 30s", False, [])
        table = run(kit, "schedule", "list")
        assert "paused" in table
        assert "every 30s" in table
        assert "19 bytes: from standard input" in run(kit, "schedule", "show", "often")
        assert "next: none, it is paused" in run(kit, "schedule", "pause", "often")
        assert "resumed schedule often\nnext: " in run(kit, "schedule", "resume", "often")
        run(kit, "schedule", "trigger", "daily")
        [message] = kit.messages("T")
        assert (message.body, message.tags, message.properties["a"]) == (b"x", "t", "b")
        assert run(kit, "schedule", "delete", "often") == "deleted schedule often\n"
        assert "no schedule 'often'" in run(kit, "schedule", "show", "often", code=1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "needs one of --cron, --every and --at"),
        (("--cron", "* * * * *", "--every", "5s"), "needs one of"),
        (("--every", "5 parsecs"), "not an interval"),
        (("--every", "5s", "--property", "novalue"), "not a property"),
        (("--every", "5s", "--body-file", "/nonexistent"), "/nonexistent: No such file"),
    ],
)
def test_schedule_create_refuses_wrong_arguments(arguments: tuple[str, ...], why: str) -> None:
    body = () if "--body-file" in arguments else ("--body", "x")
    assert why in run_at("127.0.0.1:1", "schedule", "create", "a", "T", *body, *arguments, code=2)


def test_export_carries_schedules(tmp_path: Path) -> None:
    file = str(tmp_path / "definitions.json")
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        run(kit, "schedule", "create", *DAILY)
        before = listed(kit)
        run(kit, "export", file)
    with running_kit() as kit:
        run(kit, "import", file)
        [after] = listed(kit)
        assert {**after, "next": None} == {**before[0], "next": None}
        assert run(kit, "import", file) == "everything exists already\n"
        run(kit, "schedule", "create", *DAILY, "--tags", "changed", "--replace")
        assert "leave as it is: schedule daily" in run(kit, "import", file, code=1)
        run(kit, "import", file, "--update")
        assert listed(kit)[0]["tags"] is None
