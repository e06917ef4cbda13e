"""Commands run in the process of the tests, which must not lose its priority."""

from __future__ import annotations

from functools import cache

import pytest
import typer.main

from mq.cli import backup

_command_of = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CliRunner makes the tree of all commands again for each call, which takes longer than most commands."""
    monkeypatch.setattr("typer.testing._get_command", _command_of)


@pytest.fixture(autouse=True)
def keep_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "yield_processors", lambda: None)
