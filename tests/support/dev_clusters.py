"""A cluster that `raftmq dev` runs for one test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def short_lived(*arguments: str, env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What `raftmq dev` with a console says of itself; it is stopped and removed afterwards."""
    command = [sys.executable, "-m", "mq.cli", "dev", "--ephemeral", "--port", "0", "--console", "--json"]
    ratios = [part for name in ("warn", "expire", "full") for part in ("--set", f"disk_{name}_ratio=1")]
    process = subprocess.Popen(
        [*command, *ratios, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **env},
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
