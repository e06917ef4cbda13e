"""A client with few messages a second. Measures the time from when each is due to the consumer's callback.

Producer and consumer are our client library, in a separate process: ``python -m benchmarks.load.paced_client`` reads a
`PacedSendJob` from standard input and writes a `PacedReport` to standard output. Messages are sent when they are due,
whether earlier ones were answered or not, so every delay of the broker shows in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from benchmarks.load.do_job import do_job
from benchmarks.load.generators import run_generator
from mq.cli.errors import run_trio
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer

BODY_BYTES = 128
_SILENCE_SECONDS_MAX = 20.0
_ERRORS_MAX = 5


@dataclass(frozen=True, slots=True)
class PacedSendJob:
    """A load of ``rate`` messages a second: ``warmup`` seconds without measurement, then ``seconds`` with it."""

    namesrv: str
    topic: str
    rate: int
    warmup: float
    seconds: float


@dataclass(slots=True)
class PacedReport:
    """The seconds from when each measured message was due, in the order of arrival."""

    acknowledged: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    failed: int = 0
    """Messages whose send failed or had no result."""
    missing: int = 0
    """Acknowledged messages that did not arrive."""
    errors: list[str] = field(default_factory=list)
    """Errors of sends, each once."""


class _PacedConnection:
    def __init__(self, job: PacedSendJob) -> None:
        self._job = job
        self.report = PacedReport()
        self._begin = 0.0
        self._acknowledged: set[int] = set()
        self._arrived: set[int] = set()

    async def run(self) -> PacedReport:
        """Send and receive. Raises ClientError."""
        job, report = self._job, self.report
        consumer = PushConsumer(job.namesrv, "steady_consumers", consume_from="first", ordered=False)
        consumer.on(job.topic)(self._record)
        async with (
            consumer,
            Producer(job.namesrv, group="steady_producers") as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run)
            await consumer.wait_assigned()
            self._begin = time.monotonic()
            count = round(job.rate * (job.warmup + job.seconds))
            for number in range(count):
                await trio.sleep(max(0.0, self._due(number) - time.monotonic()))
                try:
                    producer.send_nowait(
                        Message(job.topic, b"%d" % number + bytes(BODY_BYTES)), self._outcome_of(number)
                    )
                except ClientError as error:
                    self._on_failure(error)
            with trio.move_on_after(_SILENCE_SECONDS_MAX):
                while producer.in_flight or self._acknowledged - self._arrived:  # noqa: ASYNC110 - the end of all
                    await trio.sleep(0.05)
            consumer.stop()
        first = round(job.rate * job.warmup)
        report.failed = count - first - len(report.acknowledged)
        report.missing = len({number for number in self._acknowledged - self._arrived if number >= first})
        return report

    def _due(self, number: int) -> float:
        return self._begin + number / self._job.rate

    def _counts(self, number: int) -> bool:
        return number >= round(self._job.rate * self._job.warmup)

    def _on_failure(self, error: ClientError) -> None:
        if len(self.report.errors) < _ERRORS_MAX and str(error) not in self.report.errors:
            self.report.errors.append(str(error))

    def _outcome_of(self, number: int) -> Callable[[SendResult | ClientError], None]:
        def on_outcome(outcome: SendResult | ClientError) -> None:
            if isinstance(outcome, ClientError):
                self._on_failure(outcome)
                return
            self._acknowledged.add(number)
            if self._counts(number):
                self.report.acknowledged.append(time.monotonic() - self._due(number))

        return on_outcome

    async def _record(self, message: ReceivedMessage) -> None:
        now = time.monotonic()
        number = int(message.body.rstrip(b"\0"))
        if number not in self._arrived and self._counts(number):
            self.report.delivered.append(now - self._due(number))
        self._arrived.add(number)


async def run_paced_client(job: PacedSendJob) -> PacedReport:
    """Run the job in a separate process. Raises GeneratorFailed."""
    return await run_generator("benchmarks.load.paced_client", job, PacedReport)


if __name__ == "__main__":
    do_job(PacedSendJob, lambda job: run_trio(_PacedConnection(job).run), ClientError)
