"""The commands of `raftmq bench`: produce, consume, or both, and print the measurements."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from mq.cli.bench import loads
from mq.cli.bench.plan import BODY_BYTES_MIN, BenchPlan
from mq.cli.bench.plot import draw
from mq.cli.bench.results import Result
from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.errors import TopicNotFound

_LOADS = """\b
Loads:
  produce                                   single sends, many in flight
  produce --in-flight 1                     one message at a time
  produce --batch 32 --in-flight 16         batches
  produce --linger 0.005 --in-flight 1024   batches that the SDK makes by itself
  produce --topic Many --queues 1000        many queues
  latency --rate 1000                       latency of acknowledgements at a fixed rate
  end-to-end --rate 1000                    sends and consumption, latency from end to end
  consume                                   all messages of a topic
  backlog                                   sends for a while, then reads all of it

The client is the Python SDK: `client` among the results is its own process.
"""

app = typer.Typer(help="Measure throughput and latency of sends and consumption.", epilog=_LOADS, no_args_is_help=True)

Topic = Annotated[
    str, typer.Option(help="Topic; created with --queues if it does not exist, and not deleted.", metavar="TOPIC")
]
Queues = Annotated[int, typer.Option(min=1, max=1024, help="Queues in each broker group of a topic that is created.")]
Size = Annotated[int, typer.Option(min=BODY_BYTES_MIN, max=4 << 20, help="Bytes in the body of a message.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Seconds that are measured.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Warm-up in seconds, not measured.")]
InFlight = Annotated[int, typer.Option(min=1, max=65536, help="Requests in flight.")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages per request.")]
Linger = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=10,
        help="Let the SDK batch single messages, which wait at most this number of seconds. Default: no batches.",
    ),
]
Percentiles = Annotated[
    Path | None,
    typer.Option(help="Also write all percentiles, in ms, in the format of HdrHistogram's plotter.", metavar="FILE"),
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Also draw latency by percentile, and the rate over time, as SVG.", metavar="FILE"),
]

_BENCH_TOPIC = "RaftmqBench"
_IN_FLIGHT_OPEN_LOOP = 65536
"""Enough that due messages are sent in time also while a broker stands still."""
_IN_FLIGHT_BATCHES = 16


@app.command("produce")
def produce(
    topic: Topic = _BENCH_TOPIC,
    queues: Queues = 8,
    size: Size = 1024,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    in_flight: InFlight = 256,
    batch: Batch = 1,
    linger: Linger = None,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Messages per second; default: as fast as they are acknowledged.")
    ] = None,
    percentiles: Percentiles = None,
    plot: Plot = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Send messages. With --rate, a latency counts from the time at which its message was due.

    Exit code 1 if a message was not acknowledged, or was due and could not be sent in time.
    """
    plan = BenchPlan(topic, size, seconds, warm_up, in_flight, batch, rate, _new_run(), linger)
    _run(loads.produce, plan, queues, percentiles, plot, namesrv, as_json=as_json)


@app.command("consume")
def consume(
    topic: Topic = _BENCH_TOPIC,
    seconds: Seconds = 60.0,
    plot: Plot = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Measure consumption of a topic. It begins at the first message, and ends at the last one or after some seconds.
    No offset is stored.

    Exit code 1 if the topic is empty.
    """
    plan = BenchPlan(topic, 0, seconds, 0.0, 1)
    _run(loads.consume, plan, None, None, plot, namesrv, as_json=as_json)


@app.command("both", hidden=True, deprecated=True)
@app.command("end-to-end")
def end_to_end(
    topic: Topic = _BENCH_TOPIC,
    queues: Queues = 8,
    size: Size = 1024,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    in_flight: InFlight = 256,
    batch: Batch = 1,
    linger: Linger = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages per second; 0: as fast as they are acknowledged.")
    ] = 1000.0,
    percentiles: Percentiles = None,
    plot: Plot = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Measure the latency from end to end. It sends messages at a steady rate, and consumes them.

    Exit code 1 if a message was not acknowledged, could not be sent in time, or was acknowledged and not delivered.
    """
    plan = BenchPlan(topic, size, seconds, warm_up, in_flight, batch, rate or None, _new_run(), linger)
    _run(loads.both, plan, queues, percentiles, plot, namesrv, as_json=as_json)


@app.command("latency")
def latency(
    rate: Annotated[float, typer.Option(min=0.1, help="Messages per second, whether or not others are late.")] = 1000.0,
    topic: Topic = _BENCH_TOPIC,
    queues: Queues = 8,
    size: Size = 1024,
    seconds: Seconds = 30.0,
    warm_up: WarmUp = 2.0,
    percentiles: Percentiles = None,
    plot: Plot = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Measure the latency of sends. It sends at a fixed rate, and measures from when each was due to its
    acknowledgement.

    Exit code 1 if a message was not acknowledged, or could not be sent in time.
    """
    plan = BenchPlan(topic, size, seconds, warm_up, _IN_FLIGHT_OPEN_LOOP, 1, rate, _new_run())
    _run(loads.produce, plan, queues, percentiles, plot, namesrv, as_json=as_json)


@app.command("backlog")
def backlog(
    topic: Topic = _BENCH_TOPIC,
    queues: Queues = 8,
    size: Size = 1024,
    seconds: Seconds = 10.0,
    batch: Batch = 32,
    plot: Plot = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Measure consumption of a backlog. It sends in batches for some seconds, then consumes all. No offset is stored.

    CPU time is of consuming. Exit code 1 if a message was not acknowledged.
    """
    plan = BenchPlan(topic, size, seconds, 0.0, _IN_FLIGHT_BATCHES, batch, None, _new_run())
    _run(loads.backlog, plan, queues, None, plot, namesrv, as_json=as_json)


def _new_run() -> int:
    return random.getrandbits(64)


def _run(
    load: Callable[[BenchPlan, str], Awaitable[Result]],
    plan: BenchPlan,
    queues: int | None,
    percentiles: Path | None,
    plot: Path | None,
    namesrv: str,
    *,
    as_json: bool,
) -> None:
    """Run a load and print the results; with ``queues`` a missing topic is created."""

    async def main() -> Result:
        await _find_topic(plan.topic, queues, namesrv)
        return await load(plan, namesrv)

    with _open_output(percentiles) as file, _open_output(plot) as picture:
        with client_errors():
            result = run_trio(main)
        latencies = result.delivered or result.acknowledged
        if file is not None and latencies is not None:
            latencies.histogram.output_percentile_distribution(file, 1000.0)
        if picture is not None:
            picture.write(draw(f"raftmq bench: {plan.topic}", result).encode())
    if as_json:
        print_json({"topic": plan.topic, "body_bytes": plan.body_bytes or None, **result.as_json()})
    else:
        print("\n".join(result.lines()))
    if result.failed or result.missing:
        raise CommandFailed("; ".join(result.examples) or "acknowledged messages were not delivered", EXIT_FAILED)


@contextmanager
def _open_output(path: Path | None) -> Iterator[BinaryIO | None]:
    """An output file, opened before the measurement. Raises CommandFailed."""
    try:
        with nullcontext() if path is None else path.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}", EXIT_FAILED) from error


async def _find_topic(topic: str, queues: int | None, namesrv: str) -> None:
    """Raises ClientError, and CommandFailed if the topic does not exist and is not to be created."""
    async with Admin(namesrv) as admin:
        try:
            await admin.topic_config(topic)
        except TopicNotFound:
            if queues is None:
                raise CommandFailed(f"topic {topic} does not exist", EXIT_FAILED) from None
            await admin.create_topic(topic, queues)
