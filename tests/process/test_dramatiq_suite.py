"""Dramatiq's own tests, from its source distribution, with our broker in place of those that they are written for.

What is left out looks into Redis, or at how Dramatiq's brokers work inside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.testing import running_processes
from tests.support.source_distributions import unpacked

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parent.parent.parent
FILES = ["test_redis.py", "test_composition.py", "test_callbacks.py", "test_generic_actors.py", "test_results.py"]
LEFT_OUT = [
    # They look into Redis, or replace what its broker calls inside.
    "unacked_messages_can_be_requeued",
    "messages_can_be_dead_lettered",
    "dead_lettered_messages_are_cleaned_up",
    "messages_belonging_to_missing_actors_are_rejected",
    "requeues_unhandled",
    "can_connect_via",
    "raises_attribute_error",
    "can_retry_on_connection_error",
    "nack_does_not_raise_on_missing_id",
    "join_race_condition",
    # They want to be done within half a second of real time.
    "groups_execute_jobs_in_parallel",
    "groups_execute_inner_groups",
]
PASSED_MIN = 40
SECONDS_MAX = 900

# The source distribution has no conftest.py, and not the module that the tests import.
COMMON = """
from contextlib import contextmanager
from dramatiq import Worker

RESULT_BACKENDS = ("stub",)

@contextmanager
def worker(*args, **kwargs):
    running = Worker(*args, **kwargs)
    running.start()
    try:
        yield running
    finally:
        running.stop()
"""
CONFTEST = """
import itertools, os
import dramatiq, pytest
from dramatiq import Worker
from dramatiq.rate_limits.backends import StubBackend as LimiterBackend
from dramatiq.results.backends import StubBackend
from raftmq.dramatiq import RaftmqBroker
from .common import worker

numbers = itertools.count()

class Broker(RaftmqBroker):
    def join(self, queue_name, *, fail_fast=None, timeout=None):  # the argument of the stub broker
        super().join(queue_name, timeout=timeout)

def opened():
    broker = Broker(os.environ["NAMESRV"], namespace=f"suite{next(numbers)}")
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()

stub_broker = pytest.fixture(opened, name="stub_broker")
redis_broker = pytest.fixture(opened, name="redis_broker")

@pytest.fixture
def stub_worker(stub_broker):
    with worker(stub_broker, worker_timeout=100, worker_threads=32) as running:
        yield running

@pytest.fixture
def redis_worker(redis_broker):
    with worker(redis_broker, worker_timeout=100, worker_threads=32) as running:
        yield running

@pytest.fixture
def redis_result_backend():
    return StubBackend()

@pytest.fixture
def result_backend():
    return StubBackend()

@pytest.fixture
def result_backends():
    return {"stub": StubBackend()}

@pytest.fixture
def rate_limiter_backend():
    return LimiterBackend()

@pytest.fixture
def info_logging():
    import logging
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)
"""


def test_dramatiqs_own_tests_pass_with_our_broker(tmp_path: Path) -> None:
    found = unpacked("dramatiq", tmp_path) / "tests"
    suite = tmp_path / "suite" / "tests"
    suite.mkdir(parents=True)
    for name in FILES:
        shutil.copy(found / name, suite)
    for name, text in (("__init__.py", ""), ("common.py", COMMON), ("conftest.py", CONFTEST)):
        (suite / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--tb=short", "-c", os.devnull]
    command += [
        "--rootdir",
        str(suite.parent),
        "-p",
        "no:cacheprovider",
        "-k",
        f"not ({' or '.join(LEFT_OUT)})",
        "tests",
    ]
    with running_processes() as servers:
        environment = {**os.environ, "NAMESRV": servers.namesrv}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(suite.parent)])
        ended = subprocess.run(
            command, cwd=suite.parent, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
        )
    assert ended.returncode == 0, ended.stdout[-10_000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= PASSED_MIN, ended.stdout[-1000:]
