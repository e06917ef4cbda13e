"""Which connections without a request make room for others."""

from __future__ import annotations

from mq.namesrv.unidentified import UnidentifiedConnections


def test_many_new_clients_get_time_to_identify() -> None:
    unidentified: UnidentifiedConnections[int] = UnidentifiedConnections(count_max=1000, seconds_max=30.0)
    for number in range(1100):
        unidentified.add(number, f"10.0.{number % 7}.1", number / 1000)
        assert unidentified.overdue(number / 1000) is None
    assert unidentified.overdue(29.9) is None
    for expected in range(100):
        assert unidentified.overdue(40.0) == expected
        unidentified.discard(expected)
    assert unidentified.overdue(40.0) is None
    assert len(unidentified) == 1000


def test_peer_that_sent_a_request_is_identified() -> None:
    unidentified: UnidentifiedConnections[str] = UnidentifiedConnections(count_max=1, seconds_max=1.0)
    for peer in ("a", "b", "c"):
        unidentified.add(peer, "10.0.0.1", 0.0)
    unidentified.discard("a")
    unidentified.discard("a")
    assert unidentified.overdue(2.0) == "b"
    unidentified.discard("b")
    assert unidentified.overdue(2.0) is None


def test_address_with_few_connections_displaces_one_with_many() -> None:
    unidentified: UnidentifiedConnections[str] = UnidentifiedConnections(count_max=10, seconds_max=30.0)
    assert unidentified.in_favour_of("10.0.0.1") is None
    for number in range(10):
        unidentified.add(f"many{number}", "10.0.0.1", float(number))
    for number in range(4):
        unidentified.add(f"few{number}", "10.0.0.2", 0.0)
    assert unidentified.in_favour_of("10.0.0.1") is None, "its own are no reason to close others"
    assert unidentified.in_favour_of("10.0.0.3") == "many0"
    assert unidentified.in_favour_of("10.0.0.2") == "many0"
    unidentified.add("few4", "10.0.0.2", 0.0)
    assert unidentified.in_favour_of("10.0.0.2") is None
