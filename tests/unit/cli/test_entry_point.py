"""The names of all commands, what a run imports, and that none loads more than it needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.entry_point import COMMANDS, GROUPS, build, wanted_by


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_shows_the_first_line_of_each_help(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"]).output
    assert COMMANDS[name][1] in " ".join(shown.split())


@pytest.mark.parametrize("name", GROUPS)
def test_each_command_group_lists_its_commands(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "-h"]).output
    assert GROUPS[name][1] in " ".join(shown.split())
    assert "Commands:" in shown


def test_help_is_independent_of_imported_commands() -> None:
    every, none = (CliRunner().invoke(each, ["--help"]).output for each in (app, build(())))
    assert every == none
    for name in (*COMMANDS, *GROUPS):
        assert f"\n  {name} " in none


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("topic list", {"topic"}), ("--version", set()), ("", set()), ("--help status", {"status"}), ("nonsense", set())],
)
def test_only_the_named_command_is_loaded(line: str, wanted: set[str]) -> None:
    assert wanted_by(line.split()) == wanted


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_simple_commands_import_no_heavy_modules(argument: str) -> None:
    code = f"""
import sys
from mq.cli import main
sys.argv = ["raftmq", {argument!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code
heavy = sorted({{"trio", "anyio", "structlog", "pydantic", "rich", "msgspec", "mq.client"}} & sys.modules.keys())
print(heavy)
"""
    assert python(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("shell", "environment", "found"),
    [
        ("bash", {"COMP_WORDS": "raftmq topic cr", "COMP_CWORD": "2"}, "create"),
        ("bash", {"COMP_WORDS": "raftmq nam", "COMP_CWORD": "1"}, "namesrv"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "raftmq topic cr"}, "create"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "raftmq topic cr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "create"),
    ],
)
def test_shells_complete_names(shell: str, environment: dict[str, Any], found: str) -> None:
    code = "import sys; sys.argv = ['raftmq']; from mq.cli import main; main()"
    assert found in python(code, _RAFTMQ_COMPLETE=f"complete_{shell}", **environment)


NEEDED_BY_SERVERS = ("mq.broker", "mq.namesrv", "mq.proxy", "raftlog", "prometheus_client")


@pytest.mark.parametrize("module", ["status", "topics", "dead_letters"])
def test_command_loads_no_server(module: str) -> None:
    program = f"import sys, mq.cli.entry_point, mq.cli.logs, mq.cli.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith(NEEDED_BY_SERVERS)}
    assert loaded == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "jepsen.clients",
        "jepsen.deployments.object_storage",
        "jepsen.deployments.switch",
        "mq.cli.proxy_process",
        "mq.monitoring.probe",
        "mq.proxy.grpc.self_signed",
        "mq.store.archive.worker",
        "mq.store.key_index.builder",
    ],
)
def test_each_program_module_can_be_imported_first(module: str) -> None:
    """Other tests fork it from an interpreter that has imported everything, where no circle of imports would show."""
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
