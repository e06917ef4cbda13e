"""Sends that are stored after their client has given up: they must not look like replicas that differ."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import pytest
from trio.testing import MockClock

from checkers.append_log import check_log
from checkers.history import final_reads
from jepsen import final_reads as reads
from jepsen.deployments.closed_senders import still_sending
from jepsen.recorder import Recorder
from tests.unit.jepsen.histories import NODES, QUEUE, Script

A, B, LATE = "1.1.10", "1.2.10", "2.1.10"

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: FE004E0A:A4C2 01004E0A:2A9F 04 0000012C:00000000 01:00000014 00000003     0        0 0 1
   1: FE004E0A:A4C3 01004E0A:2A9F 01 0000012C:00000000 01:00000014 00000003     0        0 0 1
   2: FE004E0A:A4C4 01004E0A:2A9F 04 00000000:00000000 00:00000000 00000000     0        0 0 1
   3: FE004E0A:A4C5 01004E0A:1F90 04 0000012C:00000000 01:00000014 00000003     0        0 0 1
"""


def test_harness_finds_closed_connections_with_unsent_bytes() -> None:
    assert list(still_sending(TABLE, [10911])) == [("10.78.0.254", 0xA4C2)]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux only")
def test_kernel_reports_a_closed_sender() -> None:
    with socket.socket() as listener, socket.socket() as sender:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sender.connect(listener.getsockname())
        sender.setblocking(False)
        try:
            while True:
                sender.send(bytes(65536))
        except BlockingIOError:
            pass
        _, own_port = sender.getsockname()
        sender.close()
        assert ("127.0.0.1", own_port) in list(still_sending(Path("/proc/net/tcp").read_text(), [port]))


async def test_replicas_are_reread_until_they_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    rounds = []

    async def read(cluster: Any, recorder: Any, topic: str, node: str, ends: dict[str, set[int | None]]) -> None:
        rounds.append(node)
        ends["T/0"].add(2 if node == "n0" and len(rounds) <= 3 else 3)

    monkeypatch.setattr(reads, "_read_replica", read)

    class Three:
        nodes = NODES

    with Recorder(tmp_path / "history.jsonl", lambda: 1) as recorder:
        await reads.read_replicas(cast("Any", Three()), recorder, "T")
    assert len(rounds) == 6


def read_round(script: Script, node: str, values: list[str]) -> None:
    for offset in (0, len(values)):
        script.add(90, "invoke", "final-read", k=QUEUE, n=node, o=offset)
        records = [[at, value, 7] for at, value in enumerate(values)] if offset == 0 else []
        script.add(90, "ok", "final-read", k=QUEUE, n=node, v=records)


def test_message_stored_between_the_reads_of_two_replicas_is_valid() -> None:
    script = Script(sent=[A])
    script.failed(LATE, 2, "info")
    read_round(script, "n0", [A])
    for node in ("n1", "n2", *NODES):
        read_round(script, node, [A, LATE])
    assert check_log(script.history()).valid is True


def test_later_read_round_does_not_hide_an_earlier_anomaly() -> None:
    script = Script(sent=[A])
    script.failed(LATE, 2, "info")
    for node in NODES:
        read_round(script, node, [A, LATE])
    for node in NODES:
        read_round(script, node, [A])
    history = script.history()
    assert final_reads(history)["n0", QUEUE].end == 1
    result = check_log(history)
    assert result.anomalies == {"flicker": 3}


def test_anomaly_shows_the_outcome_of_its_send() -> None:
    script = Script(sent=[A])
    script.failed(LATE, 2, "info")
    read_round(script, "n0", [A])
    for node in ("n1", "n2"):
        read_round(script, node, [A, LATE])
    examples = check_log(script.history()).examples
    told = "the send of 2.1.10 by process 2 had an unknown outcome: after 0.001 s, said so"
    assert told in examples["replicas-differ"][0]
    assert told in examples["flicker"][0]
