"""Every script in this directory prints what stands in it, and keeps the paper's rules on the way.

``REWRITE=1`` in the environment writes down what the scripts print now; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftlog.consensus.trace import Trace
from tests.interaction.runner import BadCommand, Runner
from tests.interaction.script import parse, render, rewritten
from tests.paper.reference import check

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_prints_its_stated_output(path: Path) -> None:
    before = path.read_text()
    trace: list[str] = []
    runner = Runner(Trace(trace.append).core_class())
    after = render(rewritten(parse(before), runner.run))
    check(trace)
    if os.environ.get("REWRITE") == "1":
        path.write_text(after)
    else:
        assert after == before, f"{path.name}: look at the difference; if it is right, run again with REWRITE=1"


def test_scripts_begin_with_a_comment() -> None:
    assert len(SCRIPTS) >= 15
    for path in SCRIPTS:
        assert path.read_text().startswith("# "), path.name


def test_changed_script_output_fails_the_test() -> None:
    script = parse("group n=1\n----\nvoters A\n\nelect A quiet\n----\n  A: leader of term 7")
    assert render(rewritten(script, Runner().run)) != render(script)


@pytest.mark.parametrize("command", ["dance", "group n=1 patience=3", "deliver parcel"])
def test_unknown_arguments_are_refused(command: str) -> None:
    runner = Runner()
    runner.run("group n=3")
    runner.run("tick A")
    with pytest.raises(BadCommand):
        runner.run(command)


@pytest.mark.parametrize("text", ["group n=1\n# late\n----\nx", "# only\n----\noutput"])
def test_misshapen_script_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comments|output"):
        parse(text)
