"""Faults by OpenChaos's names: each is one of ours, and the documentation says which."""

from __future__ import annotations

from random import Random

import pytest

from jepsen.deployments.cluster import ROOT
from jepsen.openchaos import OPENCHAOS, kinds_of
from jepsen.schedule import KINDS, draw


@pytest.mark.parametrize("name", OPENCHAOS)
def test_every_fault_is_one_of_ours_and_documented(name: str) -> None:
    kind, whats = OPENCHAOS[name]
    assert set(whats) <= {variant.what for variant in KINDS[kind]}
    page = (ROOT / "docs" / "jepsen.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` | `{kind}`:"))
    assert all(what in row for what in whats), f"{whats} are not all named in {row}"


def test_all_openchaos_faults_are_mapped() -> None:
    assert len(OPENCHAOS) == 15


def test_run_uses_only_the_requested_fault_variants() -> None:
    kinds = kinds_of(["major-suspend", "leader-suspend", "leader-kill"])
    steps = draw(Random(1), list(kinds), 60, kinds=kinds)
    assert {(step.kind, step.variant.what) for step in steps} == {
        ("pause", "leader and a follower"),
        ("pause", "leader"),
        ("kill", "leader"),
    }
