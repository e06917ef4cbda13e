"""What `make bench-spark` asks Spark for is what the options allow."""

from __future__ import annotations

from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.spark.__main__ import up_to
from spark.option_table import AtOffsets
from spark.options import parse_read_options


def test_benchmark_names_topic_parts_as_ending_offsets() -> None:
    options = parse_read_options(up_to("127.0.0.1:9876", 80), "batch")
    assert options.ending == AtOffsets({(TOPIC, "broker-a", queue): 80 for queue in range(QUEUES)})
