"""Runs clients in separate processes, and records their reports. They consume as members of a group, and send."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import trio

from checkers.recording import Worker
from jepsen.clients import ClientReport, Order
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of, value_of
from jepsen.workloads.workload import SIZES, Workload

REST_SECONDS = 0.05
AWAY_SECONDS = (0.1, 2.0)
"""Delay before a process that ended is restarted."""
PIECE_BYTES = 65536

_REPORTS = msgspec.json.Decoder(ClientReport)


async def serve_client_process(workload: Workload, name: str, command: Sequence[str]) -> None:
    """Run a client until cancelled, and restart it whenever it ends."""
    rng = random.Random(workload.rng.random())
    send_count = receive_count = 0
    try:
        while True:
            process = await workload.cluster.start_client(name, command)
            life = _Life(workload, name, process, rng)
            try:
                await life.live()
            finally:
                send_count, receive_count = send_count + life.send_count, receive_count + life.receive_count
                with trio.CancelScope(shield=True):  # a process that is killed ends
                    await workload.cluster.kill(name)
            await trio.sleep(rng.uniform(*AWAY_SECONDS))
    finally:
        workload.recorder.note("took-part", n=name, v={"sent": send_count, "received": receive_count})


class _Life:
    """A process from its start to its end.

    Attributes:
        send_count: the number of its acknowledged messages.
        receive_count: the number of messages that it got.
    """

    def __init__(self, workload: Workload, name: str, process: trio.Process, rng: random.Random) -> None:
        self.send_count = self.receive_count = 0
        self._workload = workload
        self._name = name
        self._process = process
        self._rng = rng
        self._producer, self._member = Worker(workload.recorder), Worker(workload.recorder)
        self._under_way: str | None = None
        self._outcome_event = trio.Event()

    async def live(self) -> None:
        """Record the reports of the process until its output ends; operations in flight then end as unknown."""
        member = self._member
        member.invoke("join")
        ready = False
        async with trio.open_nursery() as nursery:
            data = b""
            assert self._process.stdout is not None, "clients tell by their output"
            while piece := await self._process.stdout.receive_some(PIECE_BYTES):
                *lines, data = (data + piece).split(b"\n")
                for report in map(_REPORTS.decode, lines):
                    if report.event == "ready":
                        member.ok("join")
                        ready = True
                        self._workload.cluster.client_joined(self._name)
                        nursery.start_soon(self._send_one_by_one)
                    else:
                        self._record_report(report)
            nursery.cancel_scope.cancel()
        if ready:
            member.invoke("leave")
        member.info("leave" if ready else "join", "its process has ended")
        if self._under_way is not None:
            self._producer.info("send", "its process has ended", v=self._under_way)

    async def _send_one_by_one(self) -> None:
        """Send one message at a time, each once the previous one has an outcome, until the workload stops."""
        assert self._process.stdin is not None, "clients take orders by their input"
        worker = self._producer
        while not self._workload.stopping.is_set():
            value = new_value(worker.process, worker.next_number(), self._rng.choice(SIZES))
            self._under_way, self._outcome_event = value, trio.Event()
            # A client library may retry on its own, and a killed one reports nothing.
            worker.invoke("send", v=value, again=True)
            order = Order(value, body_of(value), tag_of(value), *properties_of(value).values())
            try:
                await self._process.stdin.send_all(msgspec.json.encode(order) + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            await self._outcome_event.wait()
            await trio.sleep(REST_SECONDS * self._rng.random())

    def _record_report(self, report: ClientReport) -> None:
        """Record a report of the client."""
        workload, worker = self._workload, self._producer
        queue = f"{workload.topic}/{report.queue}"
        if report.event == "received":
            value = value_of(report.body, properties_of(report.property or ""), report.tag)
            self._member.ok("receive", k=queue, o=report.offset, v=value)
            workload.consumed.add((queue, report.offset))
            self.receive_count += 1
            return
        assert report.value == self._under_way, f"a client tells of {report.value} and has {self._under_way} under way"
        if report.event == "sent":
            worker.ok("send", k=queue, v=report.value, o=report.offset)
            workload.acknowledge(queue, report.offset, report.value)
            self.send_count += 1
        elif report.stored == "no":
            worker.fail("send", report.error, v=report.value)
        else:
            worker.info("send", report.error, v=report.value)
        self._under_way = None
        self._outcome_event.set()
