"""Fetches a PySpark for which Apache Iceberg has a build, and that build, for the demonstration's table.

Both are fetched once, from PyPI and Maven; without a network the table becomes Parquet files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import trio

from spark.tables.installed import PACKAGES

RELEASE: Final = "4.1"
PYSPARK: Final = f"pyspark=={RELEASE}.1"
INSTALLED: Final = Path(sys.prefix, "pyspark-for-iceberg")
_SECONDS_MAX: Final = 900.0
_START: Final = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"


class IcebergMissing(Exception):
    """PySpark with Iceberg is missing, and could not be fetched; the message says why."""


async def fetch_iceberg(directory: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Install PySpark into ``directory`` and let it download Iceberg, unless they are there already.

    Args:
        environment: variables of Spark's processes, with the directory as their first source of packages.

    Raises IcebergMissing.
    """
    if not (directory / "pyspark").is_dir():
        say(f"installing {PYSPARK} for Iceberg into {directory}, once (490 MB) ...")
        partial = directory.with_name(f"{directory.name}.partial")  # an interrupted one is not a PySpark
        options = ["--quiet", "--upgrade", "--no-deps", "--target", str(partial)]
        await _run("pip", ["-m", "pip", "install", *options, PYSPARK])
        partial.rename(directory)
    say("starting Spark with Iceberg; the first time it fetches that from Maven ...")
    submit = f"--master local[1] --packages {','.join(PACKAGES['iceberg', RELEASE])} pyspark-shell"
    await _run("Spark", ["-c", _START], {**environment, "PYSPARK_SUBMIT_ARGS": submit})


async def _run(who: str, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
    with trio.move_on_after(_SECONDS_MAX) as timeout:
        process = await trio.run_process(
            [sys.executable, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    if timeout.cancelled_caught:
        raise IcebergMissing(f"{who} has not ended after {_SECONDS_MAX:g} s")
    if process.returncode:
        raise IcebergMissing(f"{who} failed: {_reason(process.stderr.decode(errors='replace'))}")


def _reason(stderr: str) -> str:
    """The line of an output that tells the error: the first with an error, else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "unresolved dependency" in line]
    return next(iter(errors or lines[-1:]), "it said nothing")
