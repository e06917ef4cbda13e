"""Fixtures of the log's tests."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest

from tests.unit.segment.log_home import LogHome


@pytest.fixture
def home() -> Iterator[LogHome]:
    """A directory on a disk in memory, with segments of 4 KiB."""
    home = LogHome()
    yield home
    home.close_all()


@pytest.fixture
def file_size_limit() -> Iterator[Callable[[int | None], None]]:
    """Sets how large files may get, in bytes, as for a disk that becomes full there; None for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(nbytes: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if nbytes is None else nbytes, hard))

    yield limit
    limit(None)
