"""What all tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.real_groups import Cluster, cluster_in_thread

if TYPE_CHECKING:
    from selenium import webdriver

SEGMENT_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    """With files of the usual length, three replicas reserve three gigabytes, for each of many clusters."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAFTMQ_BROKER_SEGMENT_BYTES", str(SEGMENT_BYTES))
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker for all tests of a module; modules that want more have a fixture of their own."""
    with cluster_in_thread(tmp_path_factory.mktemp("cluster"), nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def started_browser() -> Iterator[webdriver.Chrome]:
    """For modules with the marks `IN_CHROMIUM`: others need not import Selenium."""
    from tests.support.chromium import chromium

    with chromium() as driver:
        yield driver


@pytest.fixture
def browser(started_browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """A window in it."""
    from tests.support.chromium import window

    with window(started_browser) as shown:
        yield shown
