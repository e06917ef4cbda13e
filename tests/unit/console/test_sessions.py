"""Sessions end when they should, and failed logins make the next one wait."""

from __future__ import annotations

import itertools

from mq.console.sessions import FAILURES_MAX, FAILURES_SECONDS, SESSIONS_MAX, LoginLimit, Session, Sessions

KEYS = ("host 10.0.0.1", "user alice")


def sessions(ended: list[str] | None = None) -> Sessions:
    numbers = itertools.count()

    def note(session: Session) -> None:
        if ended is not None:
            ended.append(session.user)

    return Sessions(lambda: f"token-{next(numbers)}", 60.0, 100.0, note)


def test_session_ends_after_idle_time() -> None:
    ended: list[str] = []
    found = sessions(ended)
    key = found.begin("alice", 0.0).key
    assert found.find(key, 59.0) is not None
    assert found.find(key, 118.0) is None
    assert (ended, len(found)) == (["alice"], 0)


def test_session_ends_at_its_limit_although_it_is_used() -> None:
    found = sessions()
    key = found.begin("alice", 0.0).key
    assert found.find(key, 50.0) is not None
    assert found.find(key, 99.0) is not None
    assert found.find(key, 100.0) is None


def test_open_tab_does_not_prolong_a_session() -> None:
    found = sessions()
    key = found.begin("alice", 0.0).key
    assert found.find(key, 50.0, is_use=False) is not None
    assert found.find(key, 61.0, is_use=False) is None


def test_least_recently_used_session_ends_at_the_limit() -> None:
    found = sessions()
    keys = [found.begin(str(number), 0.0).key for number in range(SESSIONS_MAX)]
    assert found.find(keys[0], 1.0) is not None
    found.begin("another", 2.0)
    assert found.find(keys[1], 3.0) is None
    assert found.find(keys[0], 3.0) is not None


def test_key_and_form_token_differ() -> None:
    session = sessions().begin("alice", 0.0)
    assert session.key != session.csrf


def test_failed_logins_have_to_wait() -> None:
    limit = LoginLimit()
    for number in range(FAILURES_MAX):
        assert limit.wait_seconds(KEYS, float(number)) == 0
        limit.failed(KEYS, float(number))
    assert limit.wait_seconds(KEYS, 10.0) == FAILURES_SECONDS - 10
    assert limit.wait_seconds(("host 10.0.0.2", "user alice"), 10.0) > 0, "from another address"
    assert limit.wait_seconds(("host 10.0.0.1", "user bob"), 10.0) > 0, "as another user"
    assert limit.wait_seconds(("host 10.0.0.2", "user bob"), 10.0) == 0
    assert limit.wait_seconds(KEYS, FAILURES_SECONDS) == 0


def test_successful_login_does_not_count_as_a_failure() -> None:
    limit = LoginLimit()
    for _ in range(3 * FAILURES_MAX):
        assert limit.wait_seconds(KEYS, 0.0) == 0
        limit.failed(KEYS, 0.0)
        limit.taken_back(KEYS, 0.0)


def test_valid_own_key_does_not_bypass_the_login_limit() -> None:
    limit = LoginLimit()
    own = ("host 10.0.0.1", "user own")
    for number in range(FAILURES_MAX):
        assert limit.wait_seconds(own, 0.0) == 0
        limit.failed(own, 0.0)
        limit.taken_back(own, 0.0)
        limit.failed(("host 10.0.0.1", f"user victim-{number}"), 0.0)
    assert limit.wait_seconds(("host 10.0.0.1", "user victim-9"), 1.0) > 0
