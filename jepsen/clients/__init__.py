"""Clients in separate processes, which faults can kill: one with the SDK, one with RocketMQ's client.

Both read orders from their input and report on their output, one JSON object per line. An order, to send one message:

    {"value": "3.17.100", "body": "My4xNy4xMDAv...", "tag": "t1", "property": "3.17.100"}

Reports: ``ready`` when they have joined the consumer group; ``sent`` with `value`, `queue` and `offset`; ``not-sent``
with `value`, `stored` ("no" or "unknown") and `error`; ``received`` with `queue`, `offset`, `body`, `tag` and
`property`. Bodies are in Base64. They end at the end of their input.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent.parent
_JAVA = Path(__file__).with_name("JavaClient.java")
SDK_CLIENTS = 2


class Order(msgspec.Struct, frozen=True):
    """Orders a client to send one message."""

    value: str
    body: bytes
    tag: str
    property: str


class ClientReport(msgspec.Struct, frozen=True):
    """A report of a client. `event` decides which of the other fields are set: see the module."""

    event: str
    value: str = ""
    queue: int = 0
    offset: int = 0
    body: bytes = b""
    tag: str | None = None
    property: str | None = None
    stored: str = "unknown"
    error: str = ""


def java_missing(nemeses: Sequence[str], security: str = "") -> str | None:
    """Return the reason that the Java client cannot run here, with these faults or this security; None if it can."""
    if security:
        return "it has neither an account nor certificates here"
    if "behind" in nemeses:
        return "it does not read in time what brokers with a short log remove"
    tools = [tool for tool in ("java", "javac") if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)}"
    return None if _libraries() is not None else "RocketMQ's libraries are not here: make interop fetches them"


def _libraries() -> Path | None:
    """The directory with the newest version of RocketMQ's client."""
    return max((path.parent for path in ROOT.glob(".interop/java*/lib/rocketmq-client-*.jar")), default=None)


def sdk_programs(namesrv: str, topic: str, group: str) -> dict[str, Sequence[str]]:
    """Return the command line of each SDK client, by the client's name."""
    command = [sys.executable, "-m", "jepsen.clients", namesrv, topic, group]
    return {f"client{number}": command for number in range(SDK_CLIENTS)}


def java_program(namesrv: str, topic: str, group: str, home: Path) -> Mapping[str, Sequence[str]]:
    """Return the command of the Java client, which keeps its files in ``home``. Needs its compiler and libraries.

    It is compiled if it has changed. Raises OSError, subprocess.CalledProcessError.
    """
    libraries = _libraries()
    assert libraries is not None, java_missing(())
    classes = libraries.parent / "jepsen"
    class_file = classes / _JAVA.with_suffix(".class").name
    if not class_file.exists() or class_file.stat().st_mtime < _JAVA.stat().st_mtime:
        compiler = ["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(classes), str(_JAVA)]
        subprocess.run(compiler, check=True, capture_output=True)
    options = [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}", "-Xmx128m", "-XX:+UseSerialGC"]
    command = ["java", *options, "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libraries}/*", _JAVA.stem]
    return {"java": [*command, namesrv, topic, group]}
