"""What consumers of each protocol say and make of answers, and how a run of `make bench-peers-consuming` is shown."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from benchmarks.peers.__main__ import PEERS
from benchmarks.peers.consuming.__main__ import parse_arguments
from benchmarks.peers.consuming.cases import CASES, CaseMeasurements, Sample, job_of
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult
from benchmarks.peers.consuming.load import BY_MESSAGE, BY_POSITION
from benchmarks.peers.consuming.page import HOW, section
from benchmarks.peers.consuming.turns import ConsumerResults, cases_of
from benchmarks.report.consuming_goals import goals
from benchmarks.report.summary import beside_others, by_benchmark
from benchmarks.wires.amqp_consumer import AmqpConsumer
from benchmarks.wires.consumer import DUE, DueSlots, Share, stamp
from benchmarks.wires.nats_consumer import ASKED, NatsConsumer
from benchmarks.wires.rocketmq import RocketMQWire
from benchmarks.wires.rocketmq_consumers import RocketMQPop, RocketMQPull
from benchmarks.wires.wire import LoadFailed
from mq.protocol.requests.receipts import BatchAck


def fields_of(data: bytes) -> list[dict[str, Any]]:
    """The headers of requests."""
    found, at = [], 0
    while at < len(data):
        total, size = struct.unpack_from(">II", data, at)
        found.append(json.loads(data[at + 8 : at + 8 + size]))
        at += 4 + total
    return found


def answer(opaque: int, code: int = 0, body: bytes = b"", flag: int = 1, **ext: object) -> bytes:
    fields = {key: str(value) for key, value in ext.items()}
    header = json.dumps({"code": code, "opaque": opaque, "flag": flag, "remark": "no", "extFields": fields}).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def test_every_protocol_sends_the_due_time() -> None:
    wire = RocketMQWire(DueSlots(1, 2, 100))
    _, request = wire.repeat(wire.idle()[:1])
    assert DUE.findall(request) == [b"0" * 19]
    sent = stamp(request, 1234.5)
    assert DUE.findall(sent) == [b"0000001234500000000"]
    assert len(sent) == len(request)


def test_each_of_some_consumers_reads_other_queues() -> None:
    shares = [Share("g", number, 3) for number in range(3)]
    assert sorted(queue for share in shares for queue in share.queues) == list(range(8))
    assert Share("g").queues == list(range(8))


def test_pull_follows_each_answer_at_the_next_position() -> None:
    wire = RocketMQPull(Share("g", 1, 4))
    first = fields_of(wire.initial())
    assert [(each["opaque"], each["extFields"]["queueOffset"]) for each in first] == [(1, "0"), (5, "0")]
    data = answer(5, nextBeginOffset=32, body=b"records") + answer(9, flag=0) + answer(1, code=19, nextBeginOffset=7)
    end, said = wire.take(data + answer(1, nextBeginOffset=9)[:-1])
    assert end == len(data)
    pulls = [(each["opaque"], each["extFields"]) for each in fields_of(said)]
    assert [(opaque, ext["queueOffset"], ext["commitOffset"]) for opaque, ext in pulls] == [
        (5, "32", "32"),
        (1, "7", "7"),
    ]
    with pytest.raises(LoadFailed, match="code 26"):
        wire.take(answer(5, code=26))


def test_pop_is_followed_by_an_acknowledgement_of_each_message() -> None:
    wire = RocketMQPop(Share("g", confirms_each=True))
    found: dict[str, Any] = {"popTime": 5, "invisibleTime": 60000, "reviveQid": 3, "startOffsetInfo": "0 2 100"}
    end, said = wire.take(data := answer(2, msgOffsetInfo="0 2 100,101", **found))
    assert end == len(data)
    *acks, pop = fields_of(said)
    assert [(each["code"], each["extFields"]["offset"]) for each in acks] == [(200051, "100"), (200051, "101")]
    assert acks[1]["extFields"]["extraInfo"] == "100 5 60000 3 0 broker-a 2 101"
    assert (pop["code"], pop["opaque"]) == (200050, 2)
    assert wire.take(answer(acks[0]["opaque"]))[1] == b""


def test_one_request_acknowledges_all_messages_of_a_pop() -> None:
    wire = RocketMQPop(Share("g", confirms_each=True, joins=True))
    found: dict[str, Any] = {"popTime": 5, "invisibleTime": 60000, "reviveQid": 3, "startOffsetInfo": "0 2 100"}
    _, said = wire.take(answer(2, msgOffsetInfo="0 2 100,101,109", **found))
    ack, length = said, int.from_bytes(said[:4], "big")
    header_bytes = int.from_bytes(ack[4:8], "big")
    assert json.loads(ack[8 : 8 + header_bytes])["code"] == 200151
    body = msgspec.json.Decoder(BatchAck).decode(ack[8 + header_bytes : 4 + length])
    assert [(row.group, row.queue_id, row.start, row.bits, row.pop_time_ms) for row in body.acks] == [
        ("g", 2, 100, 0b1000000011, 5)
    ]
    assert fields_of(said[4 + length :])[0]["code"] == 200050


def delivered(number: int) -> bytes:
    return b"MSG inbox 1 $JS.ACK.LOG.g.1.%d.%d.5.0 4\r\nbody\r\n" % (number, number)


def test_nats_consumer_confirms_messages_and_requests_more_in_time() -> None:
    position, each = NatsConsumer(Share("g")), NatsConsumer(Share("g", confirms_each=True))
    for wire in (position, each):
        assert b'{"batch": %d,' % ASKED in wire.initial()
    data = delivered(1) + b"PING\r\n" + delivered(2)
    end, said = position.take(data + delivered(3)[:-1])
    assert end == len(data)
    assert said == b"PONG\r\nPUB $JS.ACK.LOG.g.1.2.2.5.0 4\r\n+ACK\r\n"
    assert each.take(data)[1].count(b"+ACK") == 2
    assert b'{"batch": %d,' % (ASKED // 2) in each.take(b"".join(map(delivered, range(ASKED // 2 - 2))))[1]
    with pytest.raises(LoadFailed, match="409"):
        each.take(b"HMSG inbox 1 30 30\r\nNATS/1.0 409 Consumer Deleted\r\n\r\n\r\n")


def test_position_that_several_share_confirms_each_message_in_nats() -> None:
    assert NatsConsumer(Share("g", 0, 8)).take(delivered(1) + delivered(2))[1].count(b"+ACK") == 2


def delivery(tag: int, body: bytes = b"body") -> bytes:
    arguments = struct.pack(">HH", 60, 60) + b"\x03tag" + struct.pack(">QB", tag, 0) + b"\x00\x00"
    frames = [(1, arguments), (2, struct.pack(">HHQH", 60, 0, len(body), 0)), (3, body)]
    return b"".join(struct.pack(">BHI", kind, 1, len(each)) + each + b"\xce" for kind, each in frames)


def test_amqp_consumer_reads_and_confirms_whole_messages() -> None:
    wire, each = AmqpConsumer(Share("g")), AmqpConsumer(Share("g", confirms_each=True))
    data = delivery(7) + delivery(8)
    end, said = wire.take(data + delivery(9)[:-2])
    assert end == len(data), "a message without its body is read again"
    assert said.count(struct.pack(">HHQB", 60, 80, 8, 1)) == 1
    assert struct.pack(">HHQB", 60, 80, 7, 0) in each.take(data)[1]
    with pytest.raises(LoadFailed, match="ends the connection"):
        wire.take(struct.pack(">BHIHH", 1, 0, 4, 10, 50) + b"\xce")


def sample(rate: float, us: float, p50_ms: float = 1.0, load: float = 0.5) -> Sample:
    return Sample(rate, p50_ms, 2.0, 3.0, us, 4.0, 0, load)


def outcome() -> ConsumerResults:
    ours, nats = CaseMeasurements("1.0"), CaseMeasurements("2.12.1")
    ours.samples = {"drain-1": [sample(100_000, 4.0)], "pace-1": [sample(500, 300.0)]}
    ours.samples["pace-16"] = [sample(8000, 75.0)]
    nats.samples = {"drain-1": [sample(50_000, 13.0)], "pace-1": [sample(500, 800.0, 0.5)]}
    nats.failures = ["drain-8: gone"]
    return ConsumerResults({"raftmq": ours, "nats-always": nats}, {"etcd": "no consumers"})


def test_page_has_a_table_per_case_and_lists_missing_cases() -> None:
    plan = parse_arguments(["--megabytes", "100"])
    text = section(list(PEERS.values()), outcome(), plan, command="c", machine="m", date="d")
    assert "A backlog is 100 MB of bodies (97,656 messages)" in text
    assert "| raftmq | 100,000 | 4.0 | 250,000 | 4.0 |" in text
    assert "| nats-always | 0.50 | 2.00 | 3.00 | 800 | 4 | 0 |" in text
    assert "| raftmq | 4.0 |" in text, "16 groups cost 16 * 75 / 300 of one"
    assert "- nats-always: drain-8: gone" in text
    assert "- etcd: no consumers" in text
    assert "busy" not in text


def test_page_notes_a_busy_machine() -> None:
    busy = outcome()
    busy.measured["raftmq"].samples["drain-1"] = [sample(1.0, 1.0, load=9.0)] * 9
    text = section(list(PEERS.values()), busy, parse_arguments([]), command="c", machine="m", date="d")
    assert "**The machine was busy with other work**" in text


def test_goals_compare_with_the_best_durable_system_and_with_nats() -> None:
    samples = {
        name: {
            case: [{"servers_us": each.servers_us, "p50_ms": each.p50_ms} for each in found] for case, found in cases
        }
        for name, cases in ((name, measured.samples.items()) for name, measured in outcome().measured.items())
    }
    found = {figure.name: figure for figure in goals(samples)}
    assert [figure.is_met for figure in found.values()] == [True, False, True, False]
    assert [figure.goal for figure in found.values()] == [1.5, 0.75, pytest.approx(3e6 / 13), 3.0]
    assert goals({}) == []


def test_summary_shows_a_dash_for_missing_measurements() -> None:
    measured = {
        name: {"samples": {case: [{"servers_us": each.servers_us, "p50_ms": each.p50_ms, "load_average": 9.0}]}}
        for name, one in outcome().measured.items()
        for case, (each, *_) in list(one.samples.items())[:1]
    }
    lines = beside_others(None, {"date": "2026-11-29 01:00 UTC", "measured": measured})
    assert "consuming 2026-11-29, with a load average of 9" in lines[0]
    assert lines[4] == "| raftmq, on disk | - | - | - | - | 250,000 | - | - |"
    rows = by_benchmark([("store", "2026-11-22", True, "a"), ("store", "2026-11-22", False, "b: rate (9 % below)")])
    assert rows[-1] == "| [store](benchmarks/store.md) | 2026-11-22 | 1 of 2 | b: rate (9 % below) |"


def test_benchmark_writes_results_only_of_complete_runs() -> None:
    assert BY_POSITION.keys() == HOW.keys() == {*BY_MESSAGE, "kafka"}
    assert not parse_arguments([]).no_write
    assert parse_arguments(["--quick"]).no_write
    assert parse_arguments(["--case", "pace-1"]).no_write
    with_client = {
        peer.name for peer in PEERS.values() if any(c.by_client for c in cases_of(peer, parse_arguments([])))
    }
    assert with_client == {"raftmq", "nats-2.12", "nats-always", "rabbitmq", "kafka", "kafka-flush"}


def test_job_and_its_result_survive_json() -> None:
    base = ConsumerJob("", "nats", ("h", 1), (7,), messages=5)
    job = job_of(next(case for case in CASES if case.kind == DRAIN and case.confirms_each), base, "g")
    assert (job.consumers, job.confirms_each, job.messages) == (8, True, 5)
    assert msgspec.json.decode(msgspec.json.encode(job), type=ConsumerJob) == replace(job, pids=[7])
    found = {"messages": 1, "seconds": 1.0, "server_seconds": 0.1, "client_seconds": 0.1, "latencies": {"5": 1}}
    assert msgspec.json.decode(json.dumps(found), type=ConsumerResult).latencies == {5: 1}
