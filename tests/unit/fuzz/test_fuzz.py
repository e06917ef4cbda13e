"""The fuzzer itself, and its corpus: inputs that once reached something new in the compiled parsers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mq.compiled import IS_COMPILED
from tests.fuzz import targets
from tests.fuzz.__main__ import CORPUS, Edges, Fuzzer
from tests.fuzz.mutations import first_inputs, mutated
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_gives_the_same_in_both_forms(target: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert inputs
    for data in inputs:
        TARGETS[target](data)


def test_difference_between_the_forms_is_kept_as_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "checked_records", lambda data, position: len(data) // 2)
    fuzzer = Fuzzer("records", Edges(), tmp_path, random.Random(1))
    assert not fuzzer.search(10.0)
    fuzzer.close()
    [finding] = tmp_path.iterdir()
    assert str(finding) in capsys.readouterr().err
    monkeypatch.undo()
    TARGETS["records"](finding.read_bytes())


def test_mutations_repeat_with_their_seed() -> None:
    data = first_inputs("sends")[1]
    runs = [[mutated("sends", data, [data], random.Random(seed)) for seed in range(50)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 40
