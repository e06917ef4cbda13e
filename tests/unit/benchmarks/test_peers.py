"""How a run of `make bench-peers` becomes figures, a page and a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import trio

from benchmarks.load.generators import share_out
from benchmarks.load.job import Job
from benchmarks.load.report import Report
from benchmarks.peers.__main__ import PEERS, parse_arguments
from benchmarks.peers.page import section
from benchmarks.peers.peer import Target
from benchmarks.peers.picture import COLOURS, draw
from benchmarks.peers.samples import LOADS, PeerMeasurements, Sample, samples_of
from benchmarks.peers.turns import PeerResults, measure
from benchmarks.report.run_record import earlier_run
from mq.local_cluster import ServersFailed

SVG = "{http://www.w3.org/2000/svg}"


def sample(rate: float, others: float = 0.02) -> Sample:
    return Sample(rate, 1.0, 2.5, 30.0, 4.0, 0.25, others)


def outcome() -> PeerResults:
    first, second = PeerMeasurements("1.0", resident_mib=[300.0], anonymous_mib=[200.0]), PeerMeasurements("2.10")
    first.samples = {load.name: [sample(rate) for rate in (1000.0, 3000.0, 2000.0)] for load in LOADS}
    second.samples = {"1x1": [sample(500.0)]}
    second.failures = ["64x1: the server closed the connection"]
    return PeerResults({"raftmq": first, "nats": second}, {"etcd": "etcd is not installed"}, [0.5, 1.5], 1)


def test_sample_adds_up_the_cpu_and_messages_of_all_processes() -> None:
    reports = [
        Report(messages=[600, 0], cpu_seconds=[0.1, 0.0], latencies=[{345: 600}, {}]),
        Report(messages=[400, 0], cpu_seconds=[0.2, 0.0], latencies=[{345: 400}, {}]),
    ]
    (found,) = samples_of(reports, [[0.01, 0.004, 0.002, 0.416], [0.0, 0.0, 0.0, 0.0]], seconds=0.5)
    assert found.messages_per_second == 2000
    assert found.servers_us == pytest.approx(16)
    assert found.generator_us == pytest.approx(300)
    assert found.generator_core == pytest.approx(0.4)
    assert found.others == pytest.approx(0.2)


def test_page_lists_failed_and_omitted_systems() -> None:
    args = parse_arguments(["--rounds", "2"])
    text = section(list(PEERS.values()), outcome(), args, command="make bench-peers", machine="m", date="d")
    assert "Load average before each turn: 0.5 to 1.5, before the first one 0.5." in text
    assert "| raftmq | majority, on disk | 2,000 (1,000 to 3,000) | 1.00 (1.00 to 1.00) |" in text
    assert "| nats | majority, page cache | 500 (500 to 500) |" in text
    assert text.count("| nats | majority") == 1
    assert "- nats: 64x1: the server closed the connection" in text
    assert "- etcd: etcd is not installed" in text
    assert "The time limit of 3000 s ended the run before 2 rounds were complete." in text
    assert "300; 200 without files" in text
    assert "Other processes used 0.02 cores meanwhile (0.02 to 0.02)." in text
    assert "busy" not in text


def test_complete_rounds_are_kept_when_a_run_is_interrupted(tmp_path: Path) -> None:
    turns, kept = count(1), list[int]()

    def open_servers(directory: Path) -> AbstractAsyncContextManager[Target]:
        if next(turns) > 2:
            raise KeyboardInterrupt
        raise ServersFailed("they do not start")

    peer = replace(PEERS["nats"], open=open_servers)
    run = partial(measure, [peer], tmp_path, args=parse_arguments(["--rounds", "3"]), say=print)
    with pytest.raises(KeyboardInterrupt):
        trio.run(
            partial(
                run,
                outcome=PeerResults({"nats": PeerMeasurements("1")}),
                keep=lambda each: kept.append(each.rounds),
            )
        )
    assert kept == [1, 2]


def test_benchmark_run_continues_from_its_results_file(tmp_path: Path) -> None:
    results = tmp_path / "peers.json"
    results.write_text(json.dumps({"machine": "m", **asdict(outcome())}))
    assert earlier_run(results, PeerResults) == outcome()
    for wrong in ("{}", "[]", "no JSON", '{"measured": {"raftmq": {"speed": 1}}}'):
        results.write_text(wrong)
        with pytest.raises(ValueError, match="results of another benchmark"):
            earlier_run(results, PeerResults)


def test_page_notes_a_busy_machine() -> None:
    busy = outcome()
    busy.measured["raftmq"].samples = {"1x1": [sample(10.0, others) for others in (0.5, 1.2, 1.4)]}
    text = section(list(PEERS.values()), busy, parse_arguments([]), command="c", machine="m", date="d")
    assert "Other processes used 0.85 cores meanwhile (0.02 to 1.40). **The machine was busy**" in text


def test_picture_has_a_bar_for_each_figure() -> None:
    picture = ET.fromstring(draw(list(PEERS.values()), outcome().measured))
    bars = [each for each in picture.iter(f"{SVG}rect") if each.get("height") == "16"]
    assert len(bars) == len(LOADS) + 1
    width = float(picture.get("viewBox", "").split()[2])
    assert all(float(bar.get("x", "0")) + float(bar.get("width", "0")) < width / 2 for bar in bars)


def test_one_slow_window_does_not_shorten_all_bars() -> None:
    slow = outcome()
    slow.measured["raftmq"].samples["1x1"][0] = Sample(10.0, 500.0, 2.5, 30.0, 4.0, 0.25, 0.02)
    picture = ET.fromstring(draw(list(PEERS.values()), slow.measured))
    bars = [float(each.get("width", "0")) for each in picture.iter(f"{SVG}rect") if each.get("height") == "16"]
    assert min(bars) > 20


def test_every_peer_durability_has_a_colour() -> None:
    assert {peer.durability for peer in PEERS.values()} == set(COLOURS)
    assert len(PEERS) >= 9


def test_only_a_full_run_of_all_peers_is_written() -> None:
    assert not parse_arguments([]).no_write
    for arguments in (["--quick"], ["--peer", "nats"], ["--no-write"]):
        assert parse_arguments(arguments).no_write


def test_connections_and_slots_are_divided_among_processes() -> None:
    job = Job(("h", 1), 5, 4, 10, 0.0, 1.0, 1, 1)
    first, second = share_out(job)
    assert (first.connections, first.first_slot) == (3, 1)
    assert (second.connections, second.first_slot) == (2, 13)
    assert len(share_out(Job(("h", 1), 1, 1, 10, 0.0, 1.0, 1, 1))) == 1
