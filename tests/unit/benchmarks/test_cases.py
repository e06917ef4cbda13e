"""Cases of `python -m benchmarks`: one table of them, hops per message, and what is asked of Spark."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import CASES, main
from benchmarks.hops import FEW, MANY, per_message
from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.spark.__main__ import up_to
from spark.option_table import AtOffsets
from spark.options import parse_read_options

MAKEFILE = (Path(__file__).parent.parent.parent.parent / "Makefile").read_text()


def test_every_case_is_a_module_that_can_be_run() -> None:
    for case in CASES.values():
        spec = importlib.util.find_spec(case.module)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        text = (path.with_name("__main__.py") if path.name == "__init__.py" else path).read_text()
        assert '__name__ == "__main__"' in text


def test_every_target_of_make_is_a_case_and_is_explained() -> None:
    lists = re.findall(r"^BENCHES \+?:?= (.*)$", MAKEFILE, re.MULTILINE)
    targets = set(re.findall(r"bench-([a-z-]+)", " ".join(lists)))
    assert {"peers", "gate", "steady"} <= targets <= CASES.keys()
    for name in targets:
        assert f"\n## bench-{name}: " in MAKEFILE


def test_unknown_case_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stedy"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no case 'stedy'" in said
    assert "steady" in said


@pytest.mark.parametrize(("few", "many", "each"), [(116, 116, 0), (116, 115, 0), (115, 116, 0), (135, 359, 7)])
def test_one_hop_more_per_round_is_ignored_per_message(few: int, many: int, each: int) -> None:
    assert MANY - FEW == 32
    assert per_message(few, many) == each


def test_benchmark_names_topic_parts_as_ending_offsets() -> None:
    options = parse_read_options(up_to("127.0.0.1:9876", 80), "batch")
    assert options.end == AtOffsets({(TOPIC, "broker-a", queue): 80 for queue in range(QUEUES)})
