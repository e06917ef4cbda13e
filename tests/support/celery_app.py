"""The application of the tests with Celery; the environment says which broker it uses."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from typing import Any

from celery import Celery

import raftmq.celery  # noqa: F401 - makes the URLs known

DIRECTORY = os.environ["CELERY_TEST_DIRECTORY"]

app = Celery("tests", broker=os.environ["CELERY_TEST_BROKER"], backend=f"file://{DIRECTORY}")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("CELERY_TEST_OPTIONS", "{}")),
    worker_hijack_root_logger=False,
)


@app.task
def add(a: float, b: float) -> float:
    return a + b


@app.task
def total(numbers: list[float]) -> float:
    return sum(numbers)


@app.task
def note(name: str) -> None:
    """Write down that it ran, where and when."""
    _write(name)


@app.task(acks_late=True, reject_on_worker_lost=True)
def work(name: str, seconds: float) -> None:
    """Write that down twice, at the beginning and at the end."""
    _write(name)
    time.sleep(seconds)
    _write(f"{name}.done")


@app.task(acks_late=True, reject_on_worker_lost=True)
def at_the_second_attempt(name: str) -> None:
    """Write that down; only a later attempt ends."""
    is_first = not os.path.exists(f"{DIRECTORY}/{name}")
    _write(name)
    if is_first:
        time.sleep(3600)  # until it is killed
    _write(f"{name}.done")


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def log(self: Any, name: str) -> None:
    """Write a line: its name, when it ran, and when it was due."""
    due = self.request.eta
    due_at = "-" if due is None else str(dt.datetime.fromisoformat(due).timestamp())
    with open(f"{DIRECTORY}/log", "a", encoding="utf-8") as file:
        file.write(f"{name} {time.time()} {due_at}\n")


def _write(name: str) -> None:
    with open(f"{DIRECTORY}/{name}", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {time.time()}\n")


@app.task(bind=True, acks_late=True)
def tick(self: Any) -> None:
    """Write down which task of a schedule ran."""
    with open(f"{DIRECTORY}/ticks", "a") as file:
        file.write(f"{self.request.id}\n")


if "CELERY_TEST_BEAT" in os.environ:
    app.conf.beat_schedule = {"tick": {"task": tick.name, "schedule": float(os.environ["CELERY_TEST_BEAT"])}}
