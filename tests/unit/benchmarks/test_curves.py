"""How a curve of `make bench-curves` becomes figures, a table and a picture; and what its load generators send."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from benchmarks.cases import Window
from benchmarks.curves.__main__ import CURVES, parse_arguments
from benchmarks.curves.lite import BODY_BYTES, lite_frames
from benchmarks.curves.page import marks, picture, section
from benchmarks.curves.polling import due_times
from benchmarks.curves.sample import Curve, PointMeasurement, PointSample, Spread, bytes_name, samples_of
from benchmarks.load.frames import lite_name, send_frame
from benchmarks.report.run_record import page_of
from benchmarks.wires.rocketmq import RocketMQWire
from benchmarks.wires.wire import Slots
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset

SVG = "{http://www.w3.org/2000/svg}"
CURVE = Curve("queues", "Queues", "queues", "128 B")


def window(leader: float, follower: float, children: float) -> Window:
    return Window(1000.0, 1.0, 2.0, leader, (follower, children), 3.0, 0.2)


def spread(value: float) -> Spread:
    return Spread(value, value - 0.5, value + 0.5)


def sample(at: str, leader: float, follower: float | None = 2.0) -> PointSample:
    of_follower = None if follower is None else spread(follower)
    return PointSample(at, spread(12_345.0), 1.5, 9.0, spread(leader), of_follower, 0.5, 100.0, 0.25, 3.0)


def test_windows_of_both_passes_become_medians_and_children_a_mean() -> None:
    empty = replace(window(90_000.0, 80_000.0, 0.0), messages_per_second=0.0)
    first = PointMeasurement("8", [empty, window(9.0, 2.0, 0.0), window(30.0, 8.0, 0.0)], 50.0, 1.0, has_followers=True)
    other = PointMeasurement("16", [window(1.0, 0.0, 0.0)], 50.0, 1.0, has_followers=False)
    second = PointMeasurement("8", [window(10.0, 3.0, 6.0)], 70.0, 4.0, has_followers=True)
    found, alone = samples_of([first, other, second])
    assert (found.at, found.leader_us, found.follower_us) == ("8", Spread(10.0, 9.0, 30.0), Spread(3.0, 2.0, 8.0))
    assert (found.children_us, found.load_average, found.rss_mib) == (2.0, 4.0, 50.0)
    assert (alone.at, alone.follower_us) == ("16", None)


def test_table_and_picture_have_every_point() -> None:
    samples = [sample("1", 10.0), sample("10,000", 20.0)]
    text = section(CURVE, samples, machine="a machine", date="today")
    assert "| 10,000 | 12,345 | 1.5 / 9.0 | 20.0 (19.5 to 20.5) | 2.0 (1.5 to 2.5) | 0.5 | 100 | 25 % |" in text
    circles = ET.fromstring(picture(CURVE, samples)).findall(f"{SVG}circle")
    assert len(circles) == 3 * 2  # leader, follower and p99
    leader = [float(each.attrib["cy"]) for each in circles if each.attrib.get("fill") == "#1d4ed8"]
    assert leader[0] > leader[1], "twice the cost is not higher up"
    for each in circles:
        assert 0 < float(each.attrib["cx"]) < 960
        assert 0 < float(each.attrib["cy"]) < 320


def test_curve_of_one_replica_has_no_follower_line() -> None:
    samples = [sample("1", 10.0, None), sample("2", 20.0, None)]
    assert "follower" not in picture(CURVE, samples)
    assert "| 1 | 12,345 | 1.5 / 9.0 | 10.0 (9.5 to 10.5) | - |" in section(CURVE, samples, machine="", date="")


def test_curve_reports_memory_and_disk_per_item() -> None:
    curve = replace(CURVE, each="a queue")
    few, many = replace(sample("1,000", 1.0), rss_mib=10.0), replace(sample("1,049,576", 1.0), rss_mib=510.0)
    text = section(curve, [few, many], machine="", date="")
    assert "From 1,000 to 1,049,576, a queue takes 500 bytes of the leader's memory." in text
    on_disk = [replace(each, state_mib=each.rss_mib / 5) for each in (few, many)]
    assert "and 100 bytes of its disk besides the log." in section(curve, on_disk, machine="", date="")


def test_slots_rotate_over_lite_topics() -> None:
    _, data = RocketMQWire(Slots(0, 4, 1, lite_topics=3)).initial()
    assert [data.count(lite_name(number).encode()) for number in range(4)] == [2, 1, 1, 0]
    chunks = list(lite_frames(range(7, 510)))
    assert [len(chunk) for chunk in chunks] == [500, 3, 0]
    assert chunks[0][0] == send_frame(1, BODY_BYTES, 0, lite_topic=lite_name(7))


def test_each_curve_has_its_section_in_the_documents() -> None:
    document = page_of("curves").read_text()
    for curve, _ in CURVES.values():
        for mark in marks(curve):
            assert mark in document
    assert parse_arguments(["--curve", "log"]).curve == ["log"]


@pytest.mark.parametrize(("size", "name"), [(64, "64 B"), (1024, "1 KiB"), (65536, "64 KiB"), (1 << 20, "1 MiB")])
def test_sizes_have_names(size: int, name: str) -> None:
    assert bytes_name(size) == name


def test_slots_take_turns_in_the_queues_of_all_topics() -> None:
    _, data = RocketMQWire(Slots(0, 6, 1, topics=2, queues=3)).initial()
    places, at = [], 0
    while at < len(data):
        length, header_length = struct.unpack_from(">II", data, at)
        fields = json.loads(data[at + 8 : at + 8 + header_length])["extFields"]
        places.append((fields["b"], fields["e"]))
        at += 4 + length
    assert places == [(topic, queue) for topic in ("Bench", "Bench1") for queue in "012"]


def test_records_carry_their_due_time_for_consumers() -> None:
    host = encode_host("127.0.0.1", 10911)
    records = [
        encode_record(
            topic="Bench",
            queue_id=0,
            body=struct.pack(">d", due) + bytes(number),
            properties="UNIQ_KEY\x01x",
            queue_offset=QueueOffset(number),
            physical_offset=PhysicalOffset(number * 500),
            born_timestamp_ms=1,
            born_host=host,
            store_timestamp_ms=2,
            store_host=host,
        )
        for number, due in enumerate((1.5, 2.25))
    ]
    assert list(due_times(b"".join(records))) == [1.5, 2.25]
