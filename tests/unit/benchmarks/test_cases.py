"""`python -m benchmarks CASE` and `make bench-CASE`: one table of cases."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import CASES, main

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
