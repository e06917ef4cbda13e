"""What all tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

SEGMENT_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    """With files of the usual length, three replicas reserve three gigabytes, for each of many clusters."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAFTMQ_BROKER_SEGMENT_BYTES", str(SEGMENT_BYTES))
        yield
