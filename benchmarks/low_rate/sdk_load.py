"""Sends few messages with our client library, each when it is due. At rate 0, a producer and a consumer stay idle.

Run as ``python -m benchmarks.low_rate.sdk_load``: a `LowRateJob` on standard input, a `Report` on standard output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from benchmarks.load.do_job import do_job
from benchmarks.load.report import Recorder, Report, monotonic_seconds
from benchmarks.low_rate.alarm import Alarm
from benchmarks.low_rate.job import LowRateJob
from mq.cli.errors import run_trio
from mq.client.consume.push_consumer import PushConsumer
from mq.client.errors import ClientError
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer


async def generate(job: LowRateJob) -> Report:
    """Send until the last window ends. Raises ClientError."""
    recorder = Recorder(job.begin, job.window_seconds, job.windows, 1)
    async with Producer(job.namesrv, group="low_rate_producers") as producer:
        if not job.rate:
            return await _be_there(job, recorder, producer)
        failures: list[ClientError] = []
        alarm = Alarm()
        for due in job.due_times(monotonic_seconds()):
            await alarm.wait_until(due)
            if (report := recorder.advance(monotonic_seconds())) is not None:
                return report  # this machine is too busy for this rate
            producer.send_nowait(Message(job.topic, bytes(job.body_bytes)), _on_send(due, recorder, failures))
            if failures:
                raise failures[0]
        await trio.sleep(max(0.0, job.end - monotonic_seconds()))
        report = recorder.advance(max(job.end, monotonic_seconds()))
    assert report is not None, "the last window has not ended"
    return report


async def _be_there(job: LowRateJob, recorder: Recorder, producer: Producer) -> Report:
    """Send one message and then nothing, with a consumer that waits for the next one."""
    consumer = PushConsumer(job.namesrv, "low_rate_consumers", consume_from="last")

    @consumer.on(job.topic)
    async def ignore(message: ReceivedMessage) -> None: ...

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        await consumer.wait_assigned()
        await producer.send(Message(job.topic, bytes(job.body_bytes)))
        report = None
        for boundary in range(job.windows + 1):
            end = job.begin + boundary * job.window_seconds
            await trio.sleep(max(0.0, end - monotonic_seconds()))
            report = recorder.advance(max(end, monotonic_seconds()))
        consumer.stop()
    assert report is not None, "the last window has not ended"
    return report


def _on_send(due: float, recorder: Recorder, failures: list[ClientError]) -> Callable[[SendResult | ClientError], None]:
    def on_outcome(outcome: SendResult | ClientError) -> None:
        if isinstance(outcome, ClientError):
            failures.append(outcome)
        else:
            recorder.samples.append(monotonic_seconds() - due)

    return on_outcome


if __name__ == "__main__":
    do_job(LowRateJob, lambda job: run_trio(partial(generate, job)), ClientError)
