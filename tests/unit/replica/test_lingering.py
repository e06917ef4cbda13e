"""When the reactor waits for the next event itself."""

from __future__ import annotations

from raftlog.net.lingering import LINGER_SECONDS, Lingering

SOON, LATE = LINGER_SECONDS / 10, LINGER_SECONDS * 10


def pays_after(*gaps: tuple[bool, float]) -> tuple[bool, bool]:
    """After waits that took so long, with something in flight or not: whether lingering pays without it, and with."""
    paid = []
    for asked in (False, True):
        lingering, came_at, now = Lingering(), 50.0, 50.0
        for in_flight, seconds in gaps:
            lingering.is_worthwhile(came_at, now, in_flight=in_flight)
            came_at = now = now + seconds
        paid.append(lingering.is_worthwhile(came_at, now, in_flight=asked))
    return paid[0], paid[1]


def test_new_reactor_lingers() -> None:
    assert pays_after() == (True, True)


def test_distant_requests_end_lingering_for_requests_but_not_for_messages_in_flight() -> None:
    message = [(True, SOON), (True, SOON), (False, LATE)]
    assert pays_after(*10 * message) == (False, True)


def test_consecutive_requests_resume_lingering() -> None:
    assert pays_after(*10 * [(False, LATE)]) == (False, True)
    assert pays_after(*10 * [(False, LATE)], *20 * [(False, SOON)]) == (True, True)


def test_reactor_does_not_linger_for_late_answers() -> None:
    assert pays_after(*10 * [(True, LATE)]) == (True, False)


def test_single_late_event_does_not_stop_lingering() -> None:
    assert pays_after(*20 * [(False, SOON)], (False, LATE)) == (True, True)
