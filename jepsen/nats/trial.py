"""One trial: clients append to a stream of three replicas and read it back, and all servers lose power at once."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from checkers.events import FORMAT
from checkers.history import History, final_reads
from checkers.recording import Worker
from jepsen.deployments.disks import Lost, open_disks
from jepsen.deployments.leftovers import held, remove_leftovers
from jepsen.nats.client import NatsClient, NatsError, open_nats
from jepsen.nats.servers import Servers, open_servers
from jepsen.recorder import Recorder
from jepsen.run import HISTORY
from jepsen.values import body_of, new_value
from mq.cli.errors import lone_errors

NODES = ("n0", "n1", "n2")
QUEUE = "Stream/0"
READER = "its leader"
"""The final read is at the stream's current leader."""
WORKLOAD = "nats"

WORKERS = 8
SIZES = (0, 100, 100, 1000)
REST_SECONDS = 0.005
ANSWER_SECONDS = 5.0
CALM_SECONDS = 5.0
READ_BACK_MAX = 50
READ_PART = 0.15
BATCH = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """The plan: ``seconds`` of appends before each of ``rounds`` power losses."""

    program: str
    version: str
    sync_interval: str
    seconds: float
    rounds: int
    seed: int

    @property
    def system(self) -> str:
        """The tested system, as text."""
        return f"nats-server {self.version}, sync_interval {self.sync_interval}"

    @property
    def command(self) -> str:
        """The command that repeats it."""
        options = f"--time {self.seconds:g} --rounds {self.rounds} --seed {self.seed}"
        return f"python -m jepsen.nats --sync-interval {self.sync_interval} {options}"


class Counts(msgspec.Struct, frozen=True):
    """How many messages were acknowledged, and how many of these are missing in the stream at the end."""

    acknowledged: int
    lost: int


def counts_of(history: History) -> Counts:
    """Of a completed trial."""
    stored = {value for queue in final_reads(history).values() for value in queue.values.values()}
    acknowledged = [send.value for send in history.named("send") if send.outcome == "ok"]
    return Counts(len(acknowledged), sum(value not in stored for value in acknowledged))


async def carry_out(trial: Trial, directory: Path, say: Callable[[str], None]) -> None:
    """The history is in ``directory`` afterwards, complete unless this raises.

    Raises NatsFailed, OSError, subprocess.CalledProcessError.
    """
    for each in remove_leftovers():
        say(f"removed what a run that is gone left: {each}")
    async with lone_errors(), AsyncExitStack() as stack:
        stack.enter_context(held(directory))
        recorder = stack.enter_context(Recorder(directory / HISTORY, time.monotonic_ns))
        disks = await stack.enter_async_context(open_disks(directory, NODES))
        say(f"starting three servers: {trial.system}; logs are in {directory / 'logs'}")
        async with open_servers(trial.program, directory, disks, trial.sync_interval) as servers:
            await servers.create_stream()
            recorder.note("begin", v=_described(trial))
            clients = Clients(servers, recorder, random.Random(trial.seed))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.work)
                for _ in range(trial.rounds):
                    await trio.sleep(trial.seconds)
                    say(f"{clients.acknowledged} messages acknowledged; all servers lose power")
                    await _lose_power(servers, recorder, say)
                await trio.sleep(CALM_SECONDS)
                clients.stopping.set()
            say(f"{clients.acknowledged} messages are acknowledged; reading the stream")
            await servers.wait_stream(len(NODES) - 1)
            await read_stream(servers, recorder)
        recorder.note("end")


def _described(trial: Trial) -> dict[str, object]:
    return {
        "format": FORMAT,
        "workload": WORKLOAD,
        "system": trial.system,
        "nemeses": ["power-loss"],
        "backend": "local",
        "seed": trial.seed,
        "seconds": trial.seconds * trial.rounds,
        "command": trial.command,
        "nodes": [READER],
        "queues": [QUEUE],
        "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


async def _lose_power(servers: Servers, recorder: Recorder, say: Callable[[str], None]) -> None:
    """All at once; they start again, and the stream is created again if no server has it."""
    number = recorder.fault_begins("power-loss", "power-loss all", NODES, majority=False)
    servers.kill_all()
    lost: list[Lost] = []

    async def lose(node: str) -> None:
        lost.append(await servers.disks[node].lose_power())

    async with trio.open_nursery() as nursery:
        for node in NODES:
            nursery.start_soon(lose, node)
    if all(each.unsynced_gone and each.synced_kept for each in lost):
        nbytes = sum(each.nbytes for each in lost)
        seen = f"a file that was not synced is gone, a synced one is not; {nbytes} bytes changed"
        recorder.fault_confirmed(number, seen)
        say(seen)
    for node in NODES:
        servers.start(node)
    if not await servers.wait_stream(len(NODES) - 1):
        say("the stream itself is gone; making it again")
        recorder.note("stream-made-again")
        await servers.create_stream()
    recorder.fault_ends(number)


class Clients:
    """Workers that append and read, each one operation at a time, at a random server."""

    def __init__(self, servers: Servers, recorder: Recorder, rng: random.Random) -> None:
        self.stopping = trio.Event()
        self.acknowledged = 0
        self._newest = 0
        self._servers = servers
        self._recorder = recorder
        self._rng = rng

    async def work(self) -> None:
        """Until `stopping` is set; returns when every operation has an outcome."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, Worker(self._recorder), random.Random(self._rng.random()))

    async def _work(self, worker: Worker, rng: random.Random) -> None:
        while not self.stopping.is_set():
            try:
                node = rng.choice(NODES)
                async with open_nats(*self._servers.address(node)) as client:
                    while not self.stopping.is_set():
                        with trio.fail_after(ANSWER_SECONDS):
                            await self._operate(worker, client, node, rng)
                        await trio.sleep(REST_SECONDS * rng.random())
            except (NatsError, OSError, trio.BrokenResourceError, trio.TooSlowError):
                await trio.sleep(0.1)  # operations in flight are recorded as unknown

    async def _operate(self, worker: Worker, client: NatsClient, node: str, rng: random.Random) -> None:
        if rng.random() < READ_PART and self._newest:
            await self._read(worker, client, node, max(1, self._newest - rng.randrange(READ_BACK_MAX)))
            return
        value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
        worker.invoke("send", k=QUEUE, v=value, n=node)
        try:
            sequence = await client.append(body_of(value))
        except BaseException as error:  # cancelled by the timeout as well
            worker.info("send", str(error) or type(error).__name__, k=QUEUE)
            raise
        worker.ok("send", k=QUEUE, v=value, o=sequence - 1, n=node)
        self.acknowledged += 1
        self._newest = sequence

    async def _read(self, worker: Worker, client: NatsClient, node: str, sequence: int) -> None:
        worker.invoke("read", k=QUEUE, n=node, o=sequence - 1)
        try:
            body = await client.read(sequence)
        except BaseException as error:
            worker.info("read", str(error) or type(error).__name__, k=QUEUE)
            raise
        worker.ok("read", k=QUEUE, n=node, v=[] if body is None else [_message(sequence, body)])


async def read_stream(servers: Servers, recorder: Recorder) -> None:
    """The whole stream; an empty `final-read` is its end. Raises NatsError, OSError, trio.BrokenResourceError."""
    worker = Worker(recorder)
    async with open_nats(*servers.address(NODES[0])) as client:
        first, last, _ = await client.stream_state()
        for begin in range(max(first, 1), last + 1, BATCH):
            worker.invoke("final-read", k=QUEUE, n=READER, o=begin - 1)
            sequences = range(begin, min(begin + BATCH, last + 1))
            found = [_message(each, body) for each in sequences if (body := await client.read(each)) is not None]
            if found:
                worker.ok("final-read", k=QUEUE, n=READER, v=found)
            else:
                worker.fail("final-read", "no message", k=QUEUE, n=READER)
        worker.invoke("final-read", k=QUEUE, n=READER, o=last)
        worker.ok("final-read", k=QUEUE, n=READER, v=[])


def _message(sequence: int, body: bytes) -> tuple[int, str, int]:
    """Offset, value and checksum; a body that was never written has a value that was never sent."""
    value = body.partition(b"/")[0].decode(errors="replace")
    try:
        whole = body == body_of(value)
    except ValueError:
        whole = False
    return sequence - 1, value if whole else f"damaged {body[:40]!r}", zlib.crc32(body)
