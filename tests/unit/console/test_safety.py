"""Who is let in: refusals before a handler sees a request, unsafe settings, sessions and failed logins."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from mq.console.safety import cookie, cookie_name, host_fault, origin_fault, token_fault
from mq.console.sessions import FAILURES_MAX, FAILURES_SECONDS, SESSIONS_MAX, LoginLimit, Session, Sessions
from mq.console.settings import ConsoleSettings

SESSION = Session("key", "secret-token", "alice", 0.0, 0.0)


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090", "localhost", "127.0.0.1"])
def test_this_machine_is_reached_by_its_own_names(host: str) -> None:
    assert host_fault(host, loopback_only=True) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8090", "10.0.0.7:8090", "127.0.0.1.evil.example", "", None]
)
def test_other_host_names_are_refused(host: str | None) -> None:
    assert host_fault(host, loopback_only=True) is not None


@pytest.mark.parametrize(
    ("headers", "secure", "allowed"),
    [
        ({"origin": "http://console:8090"}, False, True),
        ({"origin": "https://console:8090"}, True, True),
        ({"origin": "http://console:8090"}, True, False),
        ({"origin": "https://evil.example"}, True, False),
        ({"origin": "https://console:8090.evil.example"}, True, False),
        ({"origin": "null"}, False, False),
        ({}, False, False),
        ({"sec-fetch-site": "same-origin"}, False, True),
        ({"sec-fetch-site": "cross-site"}, False, False),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, True, False),
    ],
)
def test_only_pages_of_the_console_send_forms(headers: dict[str, str], secure: bool, allowed: bool) -> None:
    fault = origin_fault({"host": "console:8090", **headers}, secure=secure)
    assert (fault is None) is allowed


@pytest.mark.parametrize("token", ["", "secret-toke", "secret-token ", "x", "ключ"])
def test_form_without_the_token_of_the_session_is_refused(token: str) -> None:
    assert token_fault(SESSION, {"token": token}) is not None
    assert token_fault(SESSION, {}) is not None
    assert token_fault(SESSION, {"token": "secret-token"}) is None


def test_cookies_are_for_this_site_alone() -> None:
    plain, secure = cookie("key", "a.example", secure=False), cookie("key", "a.example", secure=True)
    for each in (plain, secure):
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(each.split("; "))
    assert secure.startswith("__Host-raftmq=key;")
    assert "Secure" in secure.split("; ")
    assert "Max-Age=0" in cookie("", "a.example", secure=False)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8090", "raftmq-8090"),
        ("127.0.0.1:8091", "raftmq-8091"),
        ("[::1]:8090", "raftmq-8090"),
        ("[::1]", "raftmq"),
        ("console.example", "raftmq"),
        ("console.example:", "raftmq"),
        ("a:1; Domain=b", "raftmq"),
        ("a:123456", "raftmq"),
        ("8090", "raftmq"),
    ],
)
def test_consoles_on_two_ports_use_different_cookie_names(host: str, name: str) -> None:
    assert cookie_name(host, secure=False) == name
    assert cookie_name(host, secure=True) == f"__Host-{name}"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listen_host": "0.0.0.0"}, "set login"),
        ({"listen_host": "10.0.0.7"}, "set login"),
        ({"listen_host": "0.0.0.0", "login": True}, "passwords in clear"),
        ({"tls_certificate": "c.pem"}, "tls_certificate and tls_key"),
    ],
)
def test_unsafe_access_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ConsoleSettings.load(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listen_host": "::1"},
        {"listen_host": "0.0.0.0", "login": True, "tls_certificate": "c.pem", "tls_key": "k.pem"},
        {"listen_host": "0.0.0.0", "login": True, "plain_http": True},
    ],
)
def test_safe_settings_are_accepted(settings: dict[str, Any]) -> None:
    assert ConsoleSettings.load(**settings).allow_changes is False


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


def test_failed_logins_delay_further_logins() -> None:
    limit = LoginLimit()
    for number in range(FAILURES_MAX):
        assert limit.wait_seconds(KEYS, float(number)) == 0
        limit.on_failure(KEYS, float(number))
    assert limit.wait_seconds(KEYS, 10.0) == FAILURES_SECONDS - 10
    assert limit.wait_seconds(("host 10.0.0.2", "user alice"), 10.0) > 0, "from another address"
    assert limit.wait_seconds(("host 10.0.0.1", "user bob"), 10.0) > 0, "as another user"
    assert limit.wait_seconds(("host 10.0.0.2", "user bob"), 10.0) == 0
    assert limit.wait_seconds(KEYS, FAILURES_SECONDS) == 0


def test_successful_login_is_not_recorded_as_a_failure() -> None:
    limit = LoginLimit()
    for _ in range(3 * FAILURES_MAX):
        assert limit.wait_seconds(KEYS, 0.0) == 0
        limit.on_failure(KEYS, 0.0)
        limit.uncount_failure(KEYS, 0.0)


def test_valid_own_key_does_not_bypass_the_login_limit() -> None:
    limit = LoginLimit()
    own = ("host 10.0.0.1", "user own")
    for number in range(FAILURES_MAX):
        assert limit.wait_seconds(own, 0.0) == 0
        limit.on_failure(own, 0.0)
        limit.uncount_failure(own, 0.0)
        limit.on_failure(("host 10.0.0.1", f"user victim-{number}"), 0.0)
    assert limit.wait_seconds(("host 10.0.0.1", "user victim-9"), 1.0) > 0
