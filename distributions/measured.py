"""``make measure-client``: what the installed client takes, for `docs/python.md`.

A wheel of the client in a new virtual environment of each interpreter: bytes, the CPU of imports, and the memory of a
client that is open and idle, at a broker of this checkout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.procfs import load_average, machine
from benchmarks.report.run_record import replace_section
from distributions.build import ROOT
from distributions.interpreters import Environment, find_interpreters, new_environment
from mq.testing import running_processes

PAGE: Final = ROOT / "docs" / "python.md"
BEGIN: Final = "<!-- measured by `make measure-client`: begin -->"
END: Final = "<!-- measured by `make measure-client`: end -->"
IMPORT: Final = "import mq.client"
USE: Final = "from raftmq import Message, Producer, PushConsumer"
ATTEMPTS: Final = 10
IMPORT_CPU_SECONDS: Final = 0.15
"""The goal for ``import mq.client`` with the start of Python. It fails at twice as much: a Python built without
optimizations, or a machine with other work, needs more.
"""

# Installed files by distribution, without what each environment has from the start.
INSTALLED: Final = """
import json
from importlib.metadata import distributions

found = {}
for each in distributions():
    name = each.metadata["Name"].lower()
    if name not in ("pip", "setuptools"):
        paths = [each.locate_file(path) for path in each.files]
        found[name] = sum(path.stat().st_size for path in paths if path.exists())
print(json.dumps(found))
"""

_IMPORT_CPU: Final = """
import resource, subprocess, sys

def cpu(code):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

code, goal, attempts = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
cpu(code)
least = cpu(code)
for _ in range(attempts):  # other work on the machine makes it longer, never shorter
    if least <= goal:
        break
    least = min(least, cpu(code))
print(least)
"""

_IDLE: Final = """
import json, sys

steps = {}

def step(name):
    with open("/proc/self/status") as lines:
        found = dict(line.split(":", 1) for line in lines)
    steps[name] = [1024 * int(found[each].split()[0]) for each in ("VmRSS", "RssAnon")]

step("Python")
import asyncio
step("asyncio, with ssl")
import anyio
step("AnyIO")
import msgspec
step("msgspec")
from raftmq import Producer
step("raftmq")

async def main():
    async with Producer(sys.argv[1], group="idle"):
        await asyncio.sleep(1)
        step("the open client")

asyncio.run(main())
print(json.dumps(steps))
"""
"""Resident and anonymous bytes after each import, and of a producer that is open and idle."""


class Measured(NamedTuple):
    """With one Python: bytes that are installed, CPU seconds of imports with the start of Python, and resident and
    anonymous bytes after each step of a program with an idle client.
    """

    version: str
    installed_bytes: int
    imports: Mapping[str, float]
    steps: Mapping[str, tuple[int, int]]

    @property
    def idle_mib(self) -> float:
        """Resident memory of an idle client."""
        return _mib([resident for resident, _ in self.steps.values()][-1])


def section(measured: Sequence[Measured], machine: str, load: float) -> str:
    """A table with a column for each Python, and how it was measured."""
    versions = [each.version for each in measured]
    lines = [
        f"Command: `make measure-client`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Load average before: "
        f"{load:.1f}.",
        f"Machine: {machine}.",
        "",
        f"| CPython | {' | '.join(versions)} |",
        f"|---|{'---:|' * len(versions)}",
        _row("installed, MB", [f"{each.installed_bytes / 1e6:.1f}" for each in measured]),
        *(
            _row(f"`{code}` with the start of Python, s of CPU", [f"{each.imports[code]:.3f}" for each in measured])
            for code in measured[0].imports
        ),
        _row("a client that is open and idle on asyncio, MiB resident", [f"{each.idle_mib:.1f}" for each in measured]),
        _row(
            "- of it anonymous: a second process shares the rest",
            [f"{_mib(list(each.steps.values())[-1][1]):.1f}" for each in measured],
        ),
    ]
    before = [0] * len(measured)
    for name in measured[0].steps:
        now = [each.steps[name][0] for each in measured]
        lines.append(_row(f"- of it {name}", [f"{_mib(b - a):.1f}" for a, b in zip(before, now, strict=True)]))
        before = now
    return "\n".join(lines)


def _row(name: str, values: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def _mib(nbytes: int) -> float:
    return nbytes / 2**20


def installed_bytes(environment: Environment) -> dict[str, int]:
    """Bytes of the installed files of each distribution. Raises CalledProcessError."""
    found: dict[str, int] = json.loads(environment.run("-c", INSTALLED))
    return found


def import_cpu_seconds(
    environment: Environment, code: str = IMPORT, *, goal: float = IMPORT_CPU_SECONDS, attempts: int = 60
) -> float:
    """CPU seconds of a program with the start of Python: the least, or the first one that reaches the goal. Raises
    CalledProcessError.
    """
    return float(environment.run("-c", _IMPORT_CPU, code, str(goal), str(attempts)))


def main() -> None:
    """Measure, print, and write the section of docs/python.md. Raises CalledProcessError, ServersFailed."""
    parser = argparse.ArgumentParser(
        prog="make measure-client", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--no-write", action="store_true", help="leave docs/python.md as it is")
    arguments = parser.parse_args()
    load = load_average()
    measured = []
    with tempfile.TemporaryDirectory(prefix="raftmq-client-") as temporary, running_processes() as servers:
        directory = Path(temporary)
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        [wheel] = directory.glob("raftmq-*.whl")
        for interpreter in find_interpreters():
            client = new_environment(interpreter, directory / interpreter.tag)
            client.pip("install", "--only-binary", ":all:", str(wheel))
            nbytes = sum(installed_bytes(client).values())
            imports = {code: import_cpu_seconds(client, code, goal=0.0, attempts=ATTEMPTS) for code in (IMPORT, USE)}
            steps = json.loads(client.run("-c", _IDLE, servers.namesrv))
            measured.append(Measured(interpreter.version, nbytes, imports, steps))
    text = section(measured, machine(), load)
    print(text)
    if not arguments.no_write:
        PAGE.write_text(replace_section(PAGE.read_text(), text, BEGIN, END))


if __name__ == "__main__":
    main()
