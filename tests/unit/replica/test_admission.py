"""Who is let in: a table of what two replicas say of themselves; and warnings about refused frames."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from raftlog import NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net.admission import Admission, Identity
from raftlog.net.frames import Hello
from raftlog.net.refusal_log import REASONS_MAX, RefusalLog

SEGMENT_BYTES = 4096
THREE = {"n0": "a:1", "n1": "b:1", "n2": "c:1"}
FOUR = {**THREE, "n3": "d:1"}


class Side:
    """One replica's admission, with what it wanted to be remembered."""

    def __init__(
        self,
        name: str,
        addresses: dict[str, str],
        *,
        conf_index: int = 0,
        store: str | None = None,
        stores: dict[str, str] | None = None,
    ) -> None:
        self.tables: list[dict[str, str]] = []
        identity = Identity("c", "g", NodeId(name), SEGMENT_BYTES, f"store-{name}" if store is None else store)
        self.admission = Admission(identity, stores or {}, self.tables.append)
        self.admission.configure(LogIndex(conf_index), addresses)

    def hears(self, caller: Side) -> str | None:
        return self.admission.why_not(caller.calls(self))

    def calls(self, other: Side) -> Hello:
        return self.admission.hello(other.admission.identity.node_id, "bulk", "1")

    def dials(self, other: Side) -> str | None:
        """What this side makes of the welcome."""
        welcome = other.admission.welcome("1", None)
        node = other.admission.identity.node_id
        return self.admission.why_not_store(node, welcome.store_id, welcome.stores, welcome.conf_index)


def test_members_are_admitted_once_their_directory_is_recorded() -> None:
    mine, other = Side("n0", THREE), Side("n1", THREE)
    assert mine.hears(other) is None
    assert mine.admission.must_wait("n1")
    assert mine.tables == [{"n1": "store-n1"}]
    mine.admission.on_record(mine.tables[-1])
    assert not mine.admission.must_wait("n1")
    assert mine.hears(other) is None
    assert len(mine.tables) == 1, "nothing new was learned"


def test_peer_of_other_cluster_is_refused() -> None:
    mine = Side("n0", THREE)
    other = Side("n1", THREE)
    other.admission.identity = Identity("other", "g", NodeId("n1"), SEGMENT_BYTES)
    assert "not 'g' of other" in str(mine.hears(other))


def test_different_segment_size_is_refused_and_both_sizes_named() -> None:
    """So the caller may come back with another directory, which has files of the right size."""
    mine, other = Side("n0", THREE), Side("n1", THREE)
    other.admission.identity = Identity("c", "g", NodeId("n1"), 2 * SEGMENT_BYTES, "store-n1")
    refusal = str(mine.hears(other))
    assert f"(segment_bytes) have {SEGMENT_BYTES} bytes here, {2 * SEGMENT_BYTES} at 'n1'" in refusal
    assert not mine.tables


def test_duplicate_id_on_both_sides() -> None:
    """Two directories, one id: whoever came second is refused by everybody who knows the first."""
    mine, first, second = Side("n0", THREE), Side("n1", THREE), Side("n1", THREE, store="another")
    assert mine.hears(first) is None
    assert "n1 came back with another directory (store another, known is store-n1)" in str(mine.hears(second))
    assert "remove it from the group and add it again" in str(mine.dials(second))
    assert "n1 came back with another directory (store another, n0 knows store-n1)" in str(second.hears(mine))
    assert mine.dials(first) is None
    assert "this node itself" in str(mine.hears(Side("n0", THREE)))


def test_wiped_voter_is_recognised_through_another_member() -> None:
    """A wiped voter is recognised also by those that never met it before."""
    mine, middle, first = Side("n0", THREE), Side("n2", THREE), Side("n1", THREE)
    assert middle.hears(first) is None
    assert mine.hears(middle) is None
    assert mine.admission.stores == {"n1": "store-n1", "n2": "store-n2"}
    assert "another directory" in str(mine.hears(Side("n1", THREE, store="wiped")))


def test_removed_member_can_rejoin_with_a_new_directory() -> None:
    mine = Side("n0", THREE, stores={"n1": "old"})
    mine.admission.forget(["n1", "n9"])
    assert mine.tables == [{}]
    assert mine.hears(Side("n1", THREE, store="new")) is None


def test_returning_replica_accepts_the_newer_configuration() -> None:
    """It missed that n1 was removed and added anew, and n1 leads now."""
    behind = Side("n0", THREE, stores={"n1": "old"})
    leader = Side("n1", THREE, conf_index=30, store="new", stores={"n0": "store-n0"})
    assert behind.hears(leader) is None
    assert behind.dials(leader) is None
    assert leader.hears(behind) is None
    assert leader.admission.stores["n0"] == "store-n0"
    wiped = Side("n1", THREE, store="newer")
    assert "another directory" in str(leader.hears(Side("n0", THREE, store="wiped")))
    assert wiped.hears(leader) is not None


def test_stale_table_does_not_spread() -> None:
    mine = Side("n0", THREE, conf_index=30)
    assert mine.hears(Side("n2", THREE, stores={"n1": "old"})) is None
    assert "n1" not in mine.admission.stores


def test_unknown_caller_must_show_a_newer_configuration_with_both() -> None:
    behind = Side("n0", THREE, conf_index=7)
    assert behind.hears(Side("n3", FOUR, conf_index=9)) is None
    assert "'n3' is not a member of the group as of configuration 7" in str(
        behind.hears(Side("n3", FOUR, conf_index=7))
    )
    assert "not a member" in str(behind.hears(Side("n3", {"n1": "b:1", "n3": "d:1"}, conf_index=9)))


def test_joining_node_accepts_members_only() -> None:
    joining = Side("n3", {})
    assert joining.hears(Side("n0", FOUR, conf_index=9)) is None
    assert "has joined" in str(joining.hears(Side("n4", {})))
    assert Side("n0", FOUR, conf_index=9).hears(joining) is None
    assert "not a member" in str(Side("n0", THREE, conf_index=7).hears(joining))


def test_group_must_begin_with_one_configuration() -> None:
    mine = Side("n0", THREE)
    assert "members are ['n0', 'n1', 'n2'] here, ['n0', 'n1']" in str(
        mine.hears(Side("n1", {"n0": "a:1", "n1": "b:1"}))
    )
    assert mine.hears(Side("n1", FOUR, conf_index=5)) is None


def test_refusals_differing_in_numbers_are_logged_once_a_minute() -> None:
    now, error = 0.0, ""
    with capture_logs() as lines:
        log = RefusalLog(structlog.get_logger(), lambda: now)
        for number in range(100):
            now = number / 10
            error = f"n1 sends term {2**63 + number}, at most {number} is accepted, chain {number:08x}"
            log.warning("peer_message_invalid", source="n1", peer="n1", error=error)
        log.warning("peer_message_invalid", source="n2", peer="n2", error="n1 sends term 7")
        log.warning("peer_message_invalid", source="n1", peer="n1", error="something else")
        assert [(line["peer"], "times" in line) for line in lines] == [("n1", False), ("n2", False), ("n1", False)]
        now = 70.0
        log.warning("peer_message_invalid", source="n1", peer="n1", error=error)
    assert (lines[-1]["peer"], lines[-1]["times"]) == ("n1", 100)


def test_remembered_refusals_are_bounded() -> None:
    with capture_logs() as lines:
        log = RefusalLog(structlog.get_logger(), lambda: 0.0)
        for number in range(3 * REASONS_MAX):
            log.warning("peer_message_invalid", source=f"10.0.{number // 256}.{number % 256}", error="zeros")
        assert len(log._suppressions) == REASONS_MAX
    assert len(lines) == 3 * REASONS_MAX
