"""``python -m jepsen.speed``: measures the time and the memory that judging a million operations takes.

Histories are generated as clients of *log* and *register* would record them with a correct group. Each is written to a
file as by a run, and judged as by ``raftmq-jepsen check``, including the page.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from checkers.events import RUN
from jepsen.derived_messages import new_value
from jepsen.judge import REPORT, judge
from jepsen.recorder import Recorder
from jepsen.run import HISTORY

LOG_OPERATIONS, LOG_SECONDS_MAX = 1_000_000, 60.0
REGISTER_OPERATIONS, REGISTER_SECONDS_MAX = 100_000, 60.0
MEMORY_BYTES_MAX = 2 * 1024**3
PAGE_BYTES_MAX = 5 * 1000**2

NODES = ("n0", "n1", "n2")
QUEUES = ("Log/0", "Log/1", "Log/2", "Log/3")
PROCESSES = 8
STEP_NS = 20_000
BATCH = 32
REGISTER_OPERATIONS_EACH = 200


class Clock:
    """A clock that advances with each event."""

    def __init__(self) -> None:
        self.now_ns = 0

    def tick(self) -> int:
        """Advance the clock, and return its time in nanoseconds."""
        self.now_ns += STEP_NS
        return self.now_ns


def write_log(path: Path, operations: int, rng: random.Random) -> None:
    """Write a valid history of *log*: ``operations`` sends, reads and queries of ends, and the final reads."""
    with Recorder(path, Clock().tick) as recorder:
        recorder.note("begin", v=_plan("log", QUEUES))
        logs: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        for number in range(operations):
            process, queue, node = number % PROCESSES, rng.choice(QUEUES), rng.choice(NODES)
            log = logs[queue]
            chance = rng.random()
            if chance < 0.8:
                value = new_value(process, number, 100)
                recorder.add(process, "invoke", "send", k=queue, v=value, n=node)
                recorder.add(process, "ok", "send", k=queue, v=value, n=node, o=len(log))
                log.append(value)
            elif chance < 0.9:
                begin = max(0, len(log) - rng.randrange(100))
                recorder.add(process, "invoke", "read", k=queue, n=node, o=begin)
                recorder.add(process, "ok", "read", k=queue, n=node, v=_batch(log, begin))
            else:
                recorder.add(process, "invoke", "end", k=queue, n=node)
                recorder.add(process, "ok", "end", k=queue, n=node, o=len(log))
        for node in NODES:
            for queue, log in logs.items():
                for begin in (*range(0, len(log), BATCH), len(log)):
                    recorder.add(PROCESSES, "invoke", "final-read", k=queue, n=node, o=begin)
                    recorder.add(PROCESSES, "ok", "final-read", k=queue, n=node, v=_batch(log, begin))
        _end(recorder)


def write_registers(path: Path, operations: int, rng: random.Random) -> None:
    """Write a valid history of *register*: five concurrent processes write and read, 200 operations per register."""
    with Recorder(path, Clock().tick) as recorder:
        recorder.note("begin", v=_plan("register", ()))
        for number in range(operations // REGISTER_OPERATIONS_EACH):
            key, value_written = f"topic-{number}", 0
            state: int | None = None
            for _ in range(REGISTER_OPERATIONS_EACH // 5):
                writes = []
                for process in range(5):
                    value_written += 1
                    name, value = ("write", value_written) if rng.random() < 0.5 else ("get", None)
                    recorder.add(process, "invoke", name, k=key, v=value)
                    writes.append((process, name, value))
                rng.shuffle(writes)  # they take effect in this order, and are answered in another
                responses = []
                for process, name, value in writes:
                    state = value if value is not None else state
                    responses.append((process, name, state))
                for process, name, value in rng.sample(responses, len(responses)):
                    recorder.add(process, "ok", name, k=key, v=value)
        _end(recorder)


def _batch(log: Sequence[str], begin: int) -> list[tuple[int, str, int]]:
    return [(offset, log[offset], 7) for offset in range(begin, min(begin + BATCH, len(log)))]


def _plan(workload: str, queues: Sequence[str]) -> dict[str, object]:
    return {"workload": workload, "nemeses": ["calm"], "nodes": NODES, "queues": queues, "version": "of no broker"}


def _end(recorder: Recorder) -> None:
    for node in NODES:
        recorder.add(RUN, "info", "verified", n=node, v="intact")
    recorder.note("compared", v=[])
    recorder.note("send-paths", v={"compiled": 1, "others": 0})
    recorder.note("end")


def measure(workload: str, operations: int, seconds_max: float) -> bool:
    """Judge one history in this process, and print figures. Returns whether they are within the limits."""
    with tempfile.TemporaryDirectory(prefix="jepsen-speed-") as name:
        directory = Path(name)
        write = write_log if workload == "log" else write_registers
        write(directory / HISTORY, operations, random.Random(1))
        before_ns, cpu_before_ns = time.monotonic_ns(), time.process_time_ns()
        verdict = judge(directory)
        seconds = (time.monotonic_ns() - before_ns) / 1e9
        cpu_seconds = (time.process_time_ns() - cpu_before_ns) / 1e9
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        page = (directory / REPORT).read_text()
        size = (directory / HISTORY).stat().st_size
    loads = [each for each in ("http://", "https://", "src=", "@import") if each in page]
    sys.stdout.write(
        f"{workload}: {operations:,} operations ({size / 1e6:.0f} MB) judged in {seconds:.1f} s, "
        f"{cpu_seconds:.1f} s of a processor; {memory / 1024**2:.0f} MiB of memory at most; "
        f"the page has {len(page) / 1e3:.0f} kB and loads {', '.join(loads) or 'nothing'}; valid: {verdict.valid}\n"
    )
    # CPU time, so that other load on the machine does not matter.
    fast = cpu_seconds <= seconds_max and memory <= MEMORY_BYTES_MAX
    return fast and len(page) <= PAGE_BYTES_MAX and not loads and verdict.valid is True


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge both histories. Returns 1 if a figure exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m jepsen.speed", description="Judge large histories.")
    parser.add_argument("--log", type=int, default=LOG_OPERATIONS, metavar="N", help="operations on queues")
    parser.add_argument("--register", type=int, default=REGISTER_OPERATIONS, metavar="N", help="on registers")
    options = parser.parse_args(arguments)
    registers = measure("register", options.register, REGISTER_SECONDS_MAX)
    return int(not (registers and measure("log", options.log, LOG_SECONDS_MAX)))


if __name__ == "__main__":
    sys.exit(main())
