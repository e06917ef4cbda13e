"""Taskiq's own command runs workers: the page's example, a leader that is killed, and a worker that is killed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from mq.local_cluster import DevCluster, Ports
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "taskiq.md"
TASKS = 20

MODULE = """
import asyncio, os
from pathlib import Path
from raftmq.taskiq import RaftmqBroker

broker = RaftmqBroker("127.0.0.1:9876", topic="real", visibility=2.0)
here = Path(__file__).parent

def note(line):
    with open(here / "notes", "a") as file:
        file.write(line + "\\n")

@broker.task(task_name="work")
async def work(name: str) -> None:
    note(f"began {name}")
    if "HANG" in os.environ:
        await asyncio.sleep(3600)
    note(f"ended {name}")
"""


@contextmanager
def worker(directory: Path, module: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`taskiq worker` and its child, ended with everything that it started."""
    command = [sys.executable, "-m", "taskiq", "worker", f"{module}:broker", "--workers", "1", "--max-async-tasks", "4"]
    with (directory / "output").open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """By SIGKILL, with its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


async def send(directory: Path, module: str, main: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run `main` with the module of tasks, on asyncio."""
    specification = importlib.util.spec_from_file_location(module, directory / f"{module}.py")
    assert specification is not None
    assert specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    with mock.patch.dict(sys.modules, {module: loaded}):
        specification.loader.exec_module(loaded)

    async def send_all() -> None:
        await loaded.broker.startup()
        try:
            await main(loaded)
        finally:
            await loaded.broker.shutdown()  # noqa: ASYNC102

    await trio.to_thread.run_sync(lambda: asyncio.run(send_all()))


def lines(directory: Path) -> list[str]:
    notes = directory / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


async def test_tasks_survive_the_end_of_a_leader_and_of_a_worker(tmp_path: Path) -> None:
    with trio.fail_after(120), ExitStack() as stack:
        async with DevCluster.open(tmp_path / "cluster", ports=Ports.free(3), group="broker-a") as cluster:
            (tmp_path / "real.py").write_text(MODULE.replace("127.0.0.1:9876", cluster.namesrv))
            hanging = stack.enter_context(worker(tmp_path, "real", HANG="1"))
            await send(tmp_path, "real", lambda module: module.work.kiq("first"))
            await until(lambda: lines(tmp_path) == ["began first"])

            async def send_the_others(module: Any) -> None:
                for number in range(TASKS):
                    await module.work.kiq(str(number))

            cluster.kill(await cluster.leader())
            await send(tmp_path, "real", send_the_others)
            await until(lambda: len(lines(tmp_path)) == 4)  # it hangs in all that it may have, and gets no more
            kill(hanging)
            stack.enter_context(worker(tmp_path, "real"))
            expected = {"first", *map(str, range(TASKS))}
            ended: Counter[str] = Counter()

            def all_ended() -> bool:
                nonlocal ended
                ended = Counter(line.split()[1] for line in lines(tmp_path) if line.startswith("ended"))
                return set(ended) == expected

            await until(all_ended)
            assert ended == Counter(expected)

            # The page's example, with the replicas that are left.
            named, application = PAGE.read_text().split("```python\n")[1:3]
            tasks = named.split("```")[0].replace("127.0.0.1:9876", cluster.namesrv)
            (tmp_path / "tasks.py").write_text(tasks)
            statements = [line for line in application.split("```")[0].splitlines() if "kiq" in line]
            assert len(statements) == 2

            async def run_the_page(module: Any) -> None:
                for statement in statements:
                    source = f"async def run():\n    {statement}"
                    names: dict[str, Any] = {"add": module.add}
                    exec(compile(source, str(PAGE), "exec"), names)
                    await names["run"]()

            stack.enter_context(worker(tmp_path, "tasks"))
            await send(tmp_path, "tasks", run_the_page)
            output = tmp_path / "output"
            await until(lambda: "1 + 2" in output.read_text() and "3 + 4" in output.read_text())
