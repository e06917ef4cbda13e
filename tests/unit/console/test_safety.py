"""What is refused before a handler sees it, and settings that would let strangers in."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mq.console.safety import cookie, cookie_name, host_fault, origin_fault, token_fault
from mq.console.sessions import Session
from mq.console.settings import ConsoleSettings

SESSION = Session("key", "secret-token", "alice", 0.0, 0.0)


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090", "localhost", "127.0.0.1"])
def test_this_machine_is_reached_by_its_own_names(host: str) -> None:
    assert host_fault(host, loopback_only=True) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8090", "10.0.0.7:8090", "127.0.0.1.evil.example", "", None]
)
def test_foreign_host_names_are_refused(host: str | None) -> None:
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
def test_settings_that_let_strangers_in_are_refused(settings: dict[str, Any], reason: str) -> None:
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
