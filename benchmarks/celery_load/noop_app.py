"""The application of the comparison: its task returns the time at which it began.

The environment of a worker says which broker it has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery

import raftmq.celery  # noqa: F401 - makes the URLs known


def application(broker: str, backend: str, settings: Mapping[str, Any]) -> Celery:
    """Make an application with the task `noop`."""
    app = Celery("noop", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, result_expires=600, **settings)

    @app.task(name="noop", shared=False)  # type: ignore[untyped-decorator]
    def noop() -> float:
        """Return the time at which the task began, in seconds since the epoch."""
        return time.time()

    return app


if "NOOP_BROKER" in os.environ:
    app = application(os.environ["NOOP_BROKER"], os.environ["NOOP_BACKEND"], json.loads(os.environ["NOOP_SETTINGS"]))
