"""The arithmetic of the benchmarks."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest
import trio

from benchmarks import backup
from benchmarks.cases import Case, Measurement, Window
from benchmarks.disk_alone import DiskJob, write_alone
from benchmarks.latency import share_of
from benchmarks.latency_causes import Writes, bound_of
from benchmarks.load.closed_loop import Connection
from benchmarks.load.cpu_burner import burn
from benchmarks.load.do_job import STARTED_LATE
from benchmarks.load.frames import CODE, OPAQUE, complete_bytes, send_frame
from benchmarks.load.generators import GeneratorFailed
from benchmarks.load.job import Job
from benchmarks.load.open_loop import PacedJob, Sender, generate
from benchmarks.load.report import BUCKETS_PER_E, Report, monotonic_seconds, quantile
from benchmarks.procfs import own_cpu_seconds
from benchmarks.produce import windows_of
from benchmarks.pulling import PullRate, walk
from benchmarks.report.run_record import BEGIN, END, RunRecord, markdown, replace_section
from benchmarks.steady import figures_of
from benchmarks.store.follower import cost_of
from benchmarks.suites.case_load import Arguments, Note
from benchmarks.suites.figures import Figure, table
from benchmarks.suites.suite import Suite
from mq.monitoring.cpu_time import cpu_seconds
from mq.protocol.messages.batch import decode_batch
from raftlog.latency_histogram import BOUNDS


def test_frame_has_its_lengths_and_a_json_header() -> None:
    frame = send_frame(7, 128, 3)
    length, header_length = struct.unpack_from(">II", frame)
    assert length == len(frame) - 4
    header = json.loads(frame[8 : 8 + header_length])
    assert (header["code"], header["opaque"], header["extFields"]["e"]) == (310, 7, "3")
    assert len(frame) == 8 + header_length + 128
    assert 330 <= header_length <= 390
    assert OPAQUE.findall(frame) == [b"7"]
    assert CODE.findall(frame) == [b"310"]


def test_load_that_starts_late_exits_with_its_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        job = Job(server.getsockname(), 2, 1, 128, monotonic_seconds() - 0.001, 1.0, 1, 1, must_be_in_time=True)
        command = [sys.executable, "-m", "benchmarks.load.closed_loop"]
        assert subprocess.run(command, input=json.dumps(asdict(job)).encode(), check=False).returncode == STARTED_LATE


def test_burning_uses_only_its_share_of_cpu() -> None:
    used, begin = time.process_time(), time.monotonic()
    burn(0.2, 0.1)
    used, elapsed = time.process_time() - used, time.monotonic() - begin
    assert 0.0005 <= used <= 0.2 * elapsed + 0.02
    assert elapsed >= 0.1


def test_complete_bytes_stop_before_a_torn_frame() -> None:
    frame = send_frame(1, 10, 0)
    assert complete_bytes(frame * 2) == (2, 2 * len(frame))
    for cut in (0, 3, 4, 5, len(frame) - 1):
        assert complete_bytes(frame + frame[:cut]) == (1, len(frame))


def bucket(seconds: float) -> int:
    return int(math.log(seconds * 1e6) * BUCKETS_PER_E)


def test_quantiles_are_right_within_two_percent() -> None:
    counts = {bucket(0.001): 98, bucket(0.5): 2}
    assert quantile(counts, 0.5) == pytest.approx(0.001, rel=0.02)
    assert quantile(counts, 0.99) == pytest.approx(0.5, rel=0.02)
    assert quantile({}, 0.5) == 0.0


def test_windows_divide_cpu_by_the_messages_of_all_workers() -> None:
    reports = [
        Report(messages=[600, 0], cpu_seconds=[0.1, 0.0], latencies=[{bucket(0.001): 600}, {}]),
        Report(messages=[400, 0], cpu_seconds=[0.2, 0.0], latencies=[{bucket(0.001): 400}, {}]),
    ]
    first, second = windows_of(reports, [[0.01, 0.004, 0.002], [0.0, 0.0, 0.0]], seconds=0.5)
    assert first.messages_per_second == 2000
    assert first.leader_us == pytest.approx(10)
    assert first.follower_us == pytest.approx((4, 2))
    assert first.generator_us == pytest.approx(300)
    assert first.generator_cores_max == pytest.approx(0.4)
    assert second.messages_per_second == 0


def measurement(rates: list[float]) -> Measurement:
    windows = tuple(Window(rate, 1.0, 2.0, 3.0, (4.0, 5.0), 6.0, 0.7) for rate in rates)
    return Measurement(Case(3, 1024, 4, 256), windows, (50.0, 40.0, 41.0), 0.5, "quorum-fsync")


def test_median_window_is_by_rate() -> None:
    assert measurement([1.0, 100.0, 10.0]).median.messages_per_second == 10.0


def test_section_is_replaced_and_the_rest_is_kept() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    section = markdown(
        [measurement([10.0])], command="make bench", machine="m", date="d", ceilings={"1 KiB 4x256": 300_000.0}
    )
    replaced = replace_section(text, section)
    assert replaced.startswith("before\n")
    assert replaced.endswith("after\n")
    assert "old" not in replaced
    assert "| 1 KiB 4x256 | 10 | 1.00 / 2.00 | 3.0 | 4.0 + 5.0 | 50 / 40 / 41 | 6.0, 70 % |" in replaced
    assert replace_section(replaced, section) == replaced


def test_text_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no section"):
        replace_section("nothing", "new")


def test_run_writes_its_raw_figures_and_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for earlier in ("some-20260101T000000Z.json", "some-other-20260101T000000Z.json"):
        (results / earlier).touch()
    page = tmp_path / "docs" / "benchmarks" / "some.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# Some\n{BEGIN}\nold\n{END}\n")
    monkeypatch.setattr("sys.argv", ["x", "--quick"])
    record = RunRecord("some", root=tmp_path)
    record.keep(figures=[1])
    record.publish("new")
    [other, path] = sorted(results.iterdir(), reverse=True)
    assert other.name == "some-other-20260101T000000Z.json"
    kept = json.loads(path.read_text())
    assert (kept["figures"], kept["command"]) == ([1], 'make bench-some ARGS="--quick"')
    assert "\nnew\n" in page.read_text()


def test_batch_frame_holds_messages_that_a_broker_can_split() -> None:
    frame = send_frame(7, 20, 3, topic="Other", batch=3)
    header_length = struct.unpack_from(">I", frame, 4)[0]
    header = json.loads(frame[8 : 8 + header_length])
    assert (header["code"], header["extFields"]["b"], header["extFields"]["m"]) == (320, "Other", "true")
    assert [len(each.body) for each in decode_batch(frame[8 + header_length :])] == [20, 20, 20]
    assert complete_bytes(frame) == (1, len(frame))


def test_figures_are_compared_with_their_goals() -> None:
    assert Figure("a", "time", 3.0, "s", 3).is_met
    assert not Figure("a", "time", 3.1, "s", 3).is_met
    assert not Figure("a", "share", 79.9, "%", 80, is_limit=False).is_met
    assert Figure("a", "rate", 1.0, "/s").is_met
    assert "MISSED" in str(Figure("a", "time", 3.1, "s", 3))
    text = table([Figure("a", "rate", 12345, "/s")], command="c", machine="m", date="d", load_average=1)
    assert "| a | rate | 12,345 /s | - |" in text


def test_walk_visits_the_queues_in_turn() -> None:
    decoded = []
    for frame in itertools.islice(walk(20, 8, [3, 5], count=32), 6):
        length, header_length = struct.unpack_from(">II", frame)
        assert length == len(frame) - 4 == 4 + header_length
        header = json.loads(frame[8:])
        ext = header["extFields"]
        decoded.append((header["opaque"], ext["queueId"], ext["queueOffset"], ext["maxMsgNums"]))
    assert decoded == [
        (1, "3", "0", "32"),
        (2, "5", "0", "32"),
        (3, "3", "8", "32"),
        (4, "5", "8", "32"),
        (5, "3", "0", "32"),
        (6, "5", "0", "32"),
    ]


def test_cost_of_a_reader_is_its_share_of_the_rate() -> None:
    reads = [PullRate(10, 80, 0, 1.0, 0.1), PullRate(10, 120, 0, 1.0, 0.1)]
    cost = cost_of([100, 90, 90, 100], [0.1, 0.09, 0.18, 0.1], 2.0, reads)
    assert cost.rates == (50.0, 45.0)
    assert cost.percent == pytest.approx(10.0)
    assert cost.leader_us == pytest.approx((1000, 1500))
    assert (cost.read, cost.read_seconds) == (200, 2.0)


def test_percentile_is_the_value_that_this_share_does_not_exceed() -> None:
    values = list(range(100, 0, -1))
    assert share_of(values, 0.5) == 50
    assert share_of(values, 0.99) == 99
    assert share_of([7.0], 0.99) == 7.0


def test_steady_half_counts_children_separately() -> None:
    def window(rate: float, own: float, children: float) -> Window:
        return Window(rate, 1.0, 2.0, own, (own / 2, own / 2, children, children, children), 0.0, 0.0)

    windows = [window(40_000, 20, 0), window(30_000, 25, 0), window(17_000, 30, 0), window(16_000, 40, 50)]
    found = {figure.name: figure.value for figure in figures_of("pipelined", windows, 5.0)}
    assert found["messages/s, first 5 s"] == 40_000
    assert found["messages/s, steady"] == 16_500
    assert found["messages/s, steady, slowest window"] == 16_000
    assert found["CPU of the leader itself, steady"] == 35
    assert found["CPU of a follower itself, steady"] == 17.5
    assert found["CPU of a replica's child processes, steady"] == 25


def test_own_cpu_time_excludes_children() -> None:
    own, whole = own_cpu_seconds(os.getpid()), cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    assert cpu_seconds(os.getpid()) - whole >= 0.05
    assert own_cpu_seconds(os.getpid()) - own < cpu_seconds(os.getpid()) - whole


def test_rated_messages_are_sent_when_due() -> None:
    class Line:
        unsent = None

        def __init__(self) -> None:
            self.wire, self.send_times, self.sent = self, dict[Hashable, float](), list[Hashable]()

        def initial(self) -> tuple[list[str], bytes]:
            return [f"{id(self)}-{slot}" for slot in range(5)], b""

        def repeat(self, keys: list[Hashable]) -> tuple[list[Hashable], bytes]:
            self.sent += keys
            return keys, b"frames" * len(keys)

        def send(self, data: bytes) -> bool:
            return True

    lines = [Line(), Line()]
    sender = Sender(cast("list[Connection]", lines), rate=1000.0, begin=10.0)
    assert sender.send_due(10.003) == ([], [])
    assert [len(line.sent) for line in lines] == [3, 0]
    assert list(lines[0].send_times.values()) == pytest.approx([10.0, 10.001, 10.002])
    sender.send_due(10.100)  # 97 are due, and 7 slots are free
    assert [len(line.sent) for line in lines] == [5, 5]
    sender.free[cast("Connection", lines[0])].append("answered")
    sender.send_due(10.200)
    assert lines[0].send_times["answered"] == pytest.approx(10.010), "it counts from when it was due"
    assert not sender.late


def test_lateness_of_requests_counts_from_their_due_time() -> None:
    class Line:
        unsent = None

        def __init__(self) -> None:
            self.send_times: dict[Hashable, float] = {}
            self.wire = self

        def initial(self) -> tuple[list[int], bytes]:
            return list(range(100)), b""

        def repeat(self, keys: list[int]) -> tuple[list[int], bytes]:
            return keys, b""

    sender = Sender(cast("list[Connection]", [Line()]), rate=1000.0, begin=10.0, counts_from=10.002)
    sender.send_due(10.0045)
    sender.send_due(10.0065)
    assert list(sender.late) == pytest.approx([0.0025, 0.0015, 0.0025, 0.0015])


def test_disk_benchmark_writes_at_its_rate_and_removes_its_files(tmp_path: Path) -> None:
    counts = write_alone(DiskJob(str(tmp_path), writers=2, nbytes=4096, rate=200.0, seconds=0.1, file_bytes=65536))
    assert sum(counts.values()) == 40
    assert not list(tmp_path.iterdir())


def test_disk_writes_are_the_difference_of_two_readings() -> None:
    counts = (10.0, 90.0, *[100.0] * (len(BOUNDS) - 1))
    start, end = Writes(5.0, 1000.0, counts), Writes(7.0, 3000.0, tuple(3 * count for count in counts))
    found = end.since(start)
    assert (found.seconds, found.nbytes, found.count) == (2.0, 2000.0, 200.0)
    assert [bound_of(found.below, share) for share in (0.1, 0.5, 0.99)] == list(BOUNDS[:3])
    assert bound_of([0.0] * len(BOUNDS) + [1.0], 0.99) == float("inf")


def test_cost_of_a_backup_is_the_difference_of_windows() -> None:
    def window(rate: float, p50: float, leader: float) -> Window:
        return Window(rate, p50, 3 * p50, leader, (1.0, 2.0), 0.1, 0.1)

    off, on = [window(100.0, 1.0, 10.0)] * 3, [window(95.0, 1.05, 12.0)] * 3
    found = {figure.name: figure for figure in backup.figures_of(off, on)}
    assert found["lost rate"].value == pytest.approx(5.0)
    assert found["lost rate"].is_met
    assert found["p50, growth"].value == pytest.approx(5.0)
    assert not found["CPU of the leader, growth"].is_met
    assert backup.data_bytes(quick=False, free=60 * 10**9) == 6.5 * 10**9
    assert backup.data_bytes(quick=False, free=100 * 10**9) == 10**10


def test_reason_why_leaders_stopped_is_read_from_their_logs(tmp_path: Path) -> None:
    log = tmp_path / "n0.log"
    events = [("leader", "elected"), ("follower", "disk_slow"), ("follower", "leader_found"), ("leader", "elected")]
    lines = [json.dumps({"event": "role_changed", "role": role, "cause": cause}) for role, cause in events]
    log.write_text("\n".join(["not JSON", *lines, json.dumps({"event": "stopped"})]))
    assert backup.causes_of_moves(log) == ["disk_slow"]


@pytest.mark.parametrize("last", [b'"code":14', b""])
def test_load_reopens_a_failed_connection_and_counts_its_requests(last: bytes) -> None:
    """The first connection ends with a refusal, or is closed after ten replies."""

    def reply(frame: bytes, code: bytes) -> bytes:
        header = b'{%s,"opaque":%s}' % (code, OPAQUE.findall(frame)[0])
        return struct.pack(">II", 4 + len(header), len(header)) + header

    def serve() -> None:
        for number in range(2):
            connection, _ = listener.accept()
            # At the end of its time, the generator closes its connection, whatever is still to be read.
            with connection, connection.makefile("rb") as file, contextlib.suppress(ConnectionError):
                for answered in itertools.count():
                    frame = file.read(len(send_frame(1, 20, 1)))
                    if not frame or (number == 0 and answered == 10):
                        if last and number == 0:
                            connection.sendall(reply(frame, last))
                        break
                    connection.sendall(reply(frame, b'"code":0'))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        job = Job(listener.getsockname(), 1, 4, 20, monotonic_seconds() + 0.2, 0.3, 2, 1)
        report = generate(PacedJob(job, 200.0, survives=True))
        server.join(60)
    assert 1 <= report.failed <= 4
    assert sum(report.messages) >= 60


def test_failed_case_keeps_its_figures_and_does_not_stop_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def failing(args: Arguments, directory: Path, note: Note) -> None:
        (directory / "replicas" / "logs").mkdir(parents=True)
        (directory / "replicas" / "logs" / "n0.log").write_text("why")
        note(Figure("first", "rate", 1.0, "/s"))
        raise GeneratorFailed("refused")

    async def good(args: Arguments, directory: Path, note: Note) -> None:
        note(Figure("second", "rate", 2.0, "/s"))

    suite, figures = Suite("name", "about", {"first": failing, "second": good}), list[Figure]()
    missing = trio.run(suite.run, suite.parse_arguments(["--no-write"]), tmp_path, figures)
    assert missing == ["The case first failed: refused"]
    assert [figure.value for figure in figures] == [1.0, 2.0]
    kept = Path(capsys.readouterr().err.rpartition("servers are in ")[2].strip(")\n"))
    assert (kept / "0" / "n0.log").read_text() == "why"
    shutil.rmtree(kept)
