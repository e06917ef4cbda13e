"""Commands run in the process of the tests, which must not lose its priority."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq.cli import backup
from tests.support.object_storage import ENVIRONMENT, ObjectStorage, object_storage


@pytest.fixture(autouse=True)
def keep_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "yield_processors", lambda: None)


@pytest.fixture(scope="session")
def running_storage() -> Iterator[ObjectStorage]:
    with object_storage() as storage:
        yield storage


@pytest.fixture
def storage(running_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """Empty."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    running_storage.forget()
    return running_storage
