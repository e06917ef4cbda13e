"""What a change of the members of a broker group would do, and the record of changes."""

from __future__ import annotations

import pytest
import structlog

from mq.console.change_records import RECORDS_MAX, TEXT_MAX, Record, Records
from mq.console.pages.members import change_of
from mq.console.pages.visit import InputInvalid
from mq.console.views.members import Change, consequences, member_rows
from mq.protocol.requests.raft_group import GroupView, MemberView


def view(*members: MemberView, leader: str = "n0") -> GroupView:
    return GroupView("n0", "C", "broker-a", "leader", 3, leader, 0, 10, 10, False, 0.5, members)


def voter(node: str, active: bool = True) -> MemberView:
    return MemberView(node, "voter", f"{node}:10912", active, "replicate", 10, 0)


THREE = view(voter("n0"), voter("n1"), voter("n2"))


def said(change: Change, of: GroupView = THREE) -> str:
    return " ".join(consequences(change, of))


def test_removed_voter_costs_a_failure_that_the_group_survives() -> None:
    text = said(Change("remove", "n2", "", ""))
    assert "2 voters then, instead of 3: none of them may fail (1 of them may fail now)" in text
    assert "no safer than one less" in text
    assert "hands over" not in text


def test_preview_shows_that_a_leaving_leader_transfers_leadership() -> None:
    assert "n0 leads now: it hands over first" in said(Change("remove", "n0", "", ""))
    assert "n0 leads now: it hands over first" in said(Change("replace", "n9", "h:1", "n0"))


def test_change_without_a_majority_afterwards_is_a_danger() -> None:
    half_dead = view(voter("n0"), voter("n1"), voter("n2", active=False))
    assert "DANGER: n2 do not answer" in said(Change("remove", "n1", "", ""), half_dead)
    assert "DANGER" not in said(Change("remove", "n2", "", ""), half_dead), "the dead one leaves"
    assert "DANGER: no voter would be left" in said(Change("remove", "n0", "", ""), view(voter("n0")))


def test_preview_counts_promoted_learners_as_voters_but_not_added_ones() -> None:
    assert "4 voters then" in said(Change("promote", "n3", "", ""))
    assert "voters then" not in said(Change("add", "n3", "h:1", ""))


def test_only_removals_need_a_typed_name() -> None:
    assert Change("replace", "n9", "h:1", "n1").confirmation == "n1"
    assert Change("remove", "n1", "", "").confirmation == "n1"
    assert Change("add", "n9", "h:1", "").confirmation == ""


@pytest.mark.parametrize(
    "form",
    [
        {"action": "status", "node": "n1"},
        {"action": "force", "node": "n1"},
        {"action": "add", "node": "n1"},
        {"action": "add", "node": "n1", "address": "host"},
        {"action": "replace", "node": "n1", "address": "h:1"},
        {"action": "remove"},
        {"action": "remove", "node": "n" * 65},
    ],
)
def test_meaningless_form_is_refused(form: dict[str, str]) -> None:
    with pytest.raises(InputInvalid):
        change_of({name: [value] for name, value in form.items()})


def test_unconnected_member_reports_the_reason() -> None:
    silent = MemberView("n1", "learner", "h:1", False, "probe", 3, 7, 0, False, "connection refused")
    rows = member_rows(view(voter("n0"), silent))
    assert rows[0].role == "leader"
    assert (rows[1].state, rows[1].lag) == ("NOT CONNECTED, probe", "7")
    assert rows[1].note == "connection refused, its disk is slow or full"


def test_huge_forms_use_little_memory_when_recorded() -> None:
    records = Records(structlog.get_logger("test"))
    with structlog.testing.capture_logs() as logs:
        for number in range(RECORDS_MAX + 1):
            records.add(Record(number, "", "resume a transaction", "t" * 250_000, "no message " + "o" * 250_000, False))
    kept = records.all()
    assert len(kept) == RECORDS_MAX
    assert kept[0].at_ms == RECORDS_MAX
    assert all(len(each.target) + len(each.outcome) < 2 * TEXT_MAX + 10 for each in kept)
    assert len(repr(logs[0])) < 3 * TEXT_MAX
