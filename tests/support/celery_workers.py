"""Workers of Celery as real processes, and what their tasks wrote down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Workers:
    """Workers and clients of one application, and the directory of its results."""

    broker: str
    directory: Path
    options: dict[str, Any] = field(default_factory=dict)
    beat_seconds: float | None = None
    """The interval of the only entry of its beat."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CELERY_TEST_BROKER": self.broker,
            "CELERY_TEST_DIRECTORY": str(self.directory),
            "CELERY_TEST_OPTIONS": json.dumps(self.options),
            **({} if self.beat_seconds is None else {"CELERY_TEST_BEAT": str(self.beat_seconds)}),
        }

    @contextmanager
    def worker(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that is ready; killed at the end, if it still runs, with its children."""
        log = self.directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.support.celery_app", "worker", "-n", f"{name}@host"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--loglevel", "info", "--concurrency", "2", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_until(lambda: b"ready." in log.read_bytes() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, program: str) -> Any:
        """What a program of the application prints as JSON, in a process of its own."""
        text = f"import json\nfrom tests.support.celery_app import *\n{program}"
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def notes(self, name: str) -> list[tuple[int, float]]:
        """Process and time of each run of a task."""
        path = self.directory / name
        if not path.exists():
            return []
        lines = (line.split() for line in path.read_text().splitlines())
        return [(int(process), float(time)) for process, time in lines]
