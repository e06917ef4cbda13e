"""One target for all attacks; after each of them it must be as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.attacks.target import Target, running_target


@pytest.fixture(scope="session")
def session_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Started once: a start takes longer than most attacks."""
    directory = tmp_path_factory.mktemp("attacks") / "target"  # what gets out of it shows beside it
    directory.mkdir()
    with running_target(directory) as target:
        yield target


@pytest.fixture
def target(session_target: Target) -> Iterator[Target]:
    """Checks behind the test that nothing got through, and that the servers go on."""
    before = trio.run(session_target.state)
    yield session_target
    session_target.check_processes()
    after = trio.run(session_target.state)
    for name, was, is_now in zip(before._fields, before, after, strict=True):
        assert is_now == was, f"{name} was changed"
    trio.run(session_target.serve_somebody)
