"""A cluster of Spark on this machine: its master and a worker, each a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.spark.table_commands import SECONDS_MAX, wait_until


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def standalone(directory: Path, *worker: str) -> Iterator[str]:
    """A master and a worker of Spark on this machine, the latter started by a program; the URL of the master."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    deploy = "org.apache.spark.deploy"
    run = str(home / "bin" / "spark-class")
    options = ["--cores", "2", "--memory", "1g", "--webui-port", "0"]
    programs = [
        [run, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [*worker, run, f"{deploy}.worker.Worker", "--host", "127.0.0.1", *options, url],
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (directory / "spark.log").open("ab") as log:
            for program in programs:
                started.append(subprocess.Popen(program, env=environment, stdout=log, stderr=log, cwd=directory))
        text = (directory / "spark.log").read_text
        wait_until(lambda: "Successfully registered with master" in text(), SECONDS_MAX, "no worker of Spark")
        yield url
    finally:
        for each in reversed(started):
            each.terminate()
            each.wait(60)
