"""Short runs of raftmq-jepsen with real brokers: the whole way from a plan to a verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from checkers.events import Event
from checkers.history import gather
from jepsen.deployments import why_not
from jepsen.deployments.cluster import ROOT
from jepsen.judge import REPORT, VERDICT, judge
from jepsen.nemeses.needs import why_not as why_no_fault
from jepsen.run import HISTORY
from jepsen.schedule import draw

pytestmark = [pytest.mark.process, pytest.mark.slow]

RUN = [sys.executable, "-m", "jepsen", "run", "--backend", "local"]


def directory_of(store: Path) -> Path:
    (directory,) = store.iterdir()
    return directory


@pytest.mark.parametrize(
    "workload",
    ["log", "numbered", "pop", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("order", "queue"))],
)
def test_promises_hold_under_kills_and_partitions(tmp_path: Path, workload: str) -> None:
    nemeses = ["--nemesis", "kill,partition", "--quick"]
    options = ["--workload", workload, *nemeses, "--time", "6", "--seed", "1", "--store", str(tmp_path)]
    done = subprocess.run([*RUN, *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    directory = directory_of(tmp_path)
    assert (directory / REPORT).exists()
    assert (directory / VERDICT).exists()
    _plant(directory)
    verdict = judge(directory)
    (log,) = (result for result in verdict.results if result.name == "log")
    assert "lost-write" in log.anomalies, "a message that is missing from the final reads was not noticed"


def _plant(directory: Path) -> None:
    """Take one acknowledged message out of what one replica had in the end."""
    decoder = msgspec.json.Decoder(Event)
    events = [decoder.decode(line) for line in (directory / HISTORY).read_bytes().splitlines()]
    sends = [send for send in gather(events).named("send") if send.outcome == "ok"]
    victim = sends[len(sends) // 2]

    def without(event: Event) -> Event:
        if event.f != "final-read" or event.n != "n1" or event.k != victim.queue or not event.v:
            return event
        return msgspec.structs.replace(event, v=[each for each in event.v if each[0] != victim.offset])

    lines = [msgspec.json.encode(without(event)) + b"\n" for event in events]
    (directory / HISTORY).write_bytes(b"".join(lines))


def test_operators_and_damaged_disks_break_nothing(tmp_path: Path) -> None:
    nemeses = ["--nemesis", "restart,transfer,name-server,damage,pause", "--quick"]
    options = ["--workload", "offsets", *nemeses, "--time", "6", "--seed", "1", "--store", str(tmp_path)]
    done = subprocess.run([*RUN, *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_wrong_starts_and_short_logs_break_nothing(tmp_path: Path) -> None:
    nemeses = ["--nemesis", "behind,wrong-start", "--quick"]
    options = ["--workload", "queue", *nemeses, "--time", "5", "--seed", "1", "--store", str(tmp_path)]
    done = subprocess.run([*RUN, *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (result for result in judge(directory_of(tmp_path)).results if result.name == "log")
    assert log.counts["removed in their time"] > 0, "no file was removed"


@pytest.mark.nightly
def test_replicas_that_are_all_damaged_repair_each_other(tmp_path: Path) -> None:
    options = ["scenario", "helix", "--backend", "local", "--time", "5", "--seed", "1", "--store", str(tmp_path)]
    done = subprocess.run([*RUN[:3], *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


FOR_ROOT = ("power-loss", "packets", "clock", "disk-error", "slow-disk", "starve")


@pytest.mark.skipif(
    "RAFTMQ_FAULTS_FOR_ROOT" not in os.environ,
    reason="mounts file systems and makes networks: only with RAFTMQ_FAULTS_FOR_ROOT=1, and in make jepsen",
)
@pytest.mark.skipif(
    why_not("netns") is not None or any(why_no_fault(kind, "netns") is not None for kind in FOR_ROOT),
    reason="these faults are not available here",
)
def test_power_packets_clocks_and_disks_break_nothing(tmp_path: Path) -> None:
    nemeses = ",".join(FOR_ROOT)
    options = ["--nemesis", nemeses, "--workload", "log", "--time", "5", "--seed", "1", "--store", str(tmp_path)]
    done = subprocess.run(
        [*RUN[:4], "--backend", "netns", *options], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]


@pytest.mark.skipif(
    "RAFTMQ_FAULTS_FOR_ROOT" not in os.environ,
    reason="makes networks: only with RAFTMQ_FAULTS_FOR_ROOT=1",
)
@pytest.mark.skipif(why_not("netns") is not None, reason="networks cannot be made here")
def test_leftover_link_of_an_old_namespace_does_not_block_a_run(tmp_path: Path) -> None:
    """Forty runs in a row failed: a connection kept a namespace of the run before, and its link, for minutes."""
    card, name = "rmqf-v-n1", "rmqf-n1"
    subprocess.run(["ip", "netns", "add", name], check=True)
    holder = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "300"])
    try:
        link = ["ip", "link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", name]
        subprocess.run(link, check=True)
        subprocess.run(["ip", "netns", "del", name], check=True)
        assert Path("/sys/class/net", card).exists()
        options = ["--workload", "log", "--nemesis", "calm", "--time", "2", "--store", str(tmp_path)]
        done = subprocess.run(
            [*RUN[:4], "--backend", "netns", *options], cwd=ROOT, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        holder.kill()
        holder.wait()
        subprocess.run(["ip", "link", "del", card], check=False, capture_output=True)


def test_harness_finds_a_planted_mistake(tmp_path: Path) -> None:
    """With this seed the first partition leaves the leader alone with its clients, and it acknowledges by itself."""
    seed, seconds = 33, 12
    assert draw(Random(seed), ["partition"], seconds)[0].variant.what == "leader alone"
    options = ["--workload", "log", "--nemesis", "partition", "--store", str(tmp_path)]
    options += ["--time", str(seconds), "--seed", str(seed)]
    planted = ["--planted", "majority-too-small"]
    done = subprocess.run([*RUN, *options, *planted], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    (log,) = (result for result in judge(directory_of(tmp_path)).results if result.name == "log")
    assert {"lost-write", "inconsistent-offsets"} & log.anomalies.keys(), done.stdout


def test_interrupted_run_is_judged_and_leaves_no_process(tmp_path: Path) -> None:
    options = ["--workload", "log", "--nemesis", "calm", "--time", "300", "--store", str(tmp_path)]
    # Whoever starts the tests in the background ignores SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*RUN, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    for line in process.stdout:
        if "acknowledged" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "the run did not reach its end" in said
    directory = directory_of(tmp_path)
    assert (directory / REPORT).exists()
    running = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(directory).encode() in _content(path) and int(path.parent.name) != os.getpid()
    ]
    assert not running, f"these still run: {running}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
