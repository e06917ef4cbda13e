"""What `make bench-gate` makes of callgrind's dumps, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gate import __main__ as gate
from benchmarks.gate.verdict import DumpUnreadable, instructions_in, judge, per_message

DUMP = "version: 1\ncreator: callgrind-3.19.0\npart: 2\n\nevents: Ir\nsummary: 782903\n\nfn=(4) main\n16 400\n"


def test_dump_contains_its_number_of_instructions() -> None:
    assert instructions_in(DUMP) == 782903
    with pytest.raises(DumpUnreadable):
        instructions_in("version: 1\n")


def test_gate_uses_the_least_of_every_second_dump() -> None:
    counted = [("decode", 10), ("send", 100), ("send", 100)]
    assert per_message(counted, [1_000_000, 200, 777, 9_000, 888, 5_000, 999]) == {"decode": 20.0, "send": 50.0}
    with pytest.raises(DumpUnreadable, match="4 dumps, 6 were asked for"):
        per_message(counted, [1, 2, 3, 4])


def test_gate_allows_ten_percent_more_but_not_eleven() -> None:
    verdicts = judge({"a": 110.0, "b": 111.0, "c": 50.0, "new": 7.0}, {"a": 100.0, "b": 100.0, "c": 100.0})
    assert [verdict.is_good for verdict in verdicts] == [True, False, True, True]
    assert "+11.0 %   MORE THAN +10 %" in str(verdicts[1])
    assert "no baseline" in str(verdicts[3])


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A baseline of one figure, which is now 100 in each form."""
    path = tmp_path / "baseline.json"
    path.write_text(
        json.dumps({"interpreter": gate.interpreter(), "figures": {key: {"decode": 100} for key in gate.FORMS}})
    )
    return path


@pytest.mark.parametrize("risen", gate.FORMS)
@pytest.mark.parametrize(("now", "code"), [(100.0, 0), (109.0, 0), (120.0, 1)])
def test_exit_code_reports_a_risen_figure(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, risen: str, now: float, code: int
) -> None:
    monkeypatch.setattr(gate, "count", lambda form: {"decode": now if form == risen else 100.0})
    assert gate.main([], baseline) == code
    assert gate.main(["--form", next(form for form in gate.FORMS if form != risen)], baseline) == 0
    assert json.loads(baseline.read_text())["figures"] == {key: {"decode": 100} for key in gate.FORMS}
    assert gate.main(["--update"], baseline) == 0
    assert json.loads(baseline.read_text())["figures"][risen] == {"decode": now}


def test_gate_without_valgrind_names_the_package(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(baseline.parent))
    assert gate.main([], baseline) == 3
    assert "apt-get install valgrind" in capsys.readouterr().err


def test_baseline_of_another_interpreter_is_ignored(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "count", lambda form: {"decode": 1.0})
    baseline.write_text(json.dumps({"interpreter": "PyPy 7", "figures": {"decode": 100}}))
    assert gate.main([], baseline) == 3
    assert "PyPy 7" in capsys.readouterr().err


def test_committed_baseline_is_of_every_case() -> None:
    figures = json.loads((Path(gate.__file__).parent / "baseline.json").read_text())["figures"]
    assert set(figures) == set(gate.FORMS)
    for form in gate.FORMS:
        assert len(figures[form]) == 9
        assert all(value > 100 for value in figures[form].values())
