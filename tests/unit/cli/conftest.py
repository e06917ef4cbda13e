"""Commands run in the process of the tests, which must not lose its priority."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import typer.main
from botocore.loaders import JSONFileLoader

from mq.cli import backup
from tests.support.object_storage import ENVIRONMENT, ObjectStorage, object_storage

_command_of = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CliRunner makes the tree of all commands again for each call, which takes longer than most commands."""
    monkeypatch.setattr("typer.testing._get_command", _command_of)


@pytest.fixture(autouse=True)
def keep_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "yield_processors", lambda: None)


@pytest.fixture(scope="session")
def running_storage() -> Iterator[ObjectStorage]:
    """Each command makes a session of its own, and each session would parse megabytes that describe the API."""
    load = cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch, object_storage() as storage:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load(path))
        yield storage


@pytest.fixture
def storage(running_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """Empty."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    running_storage.forget()
    return running_storage
