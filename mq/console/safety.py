"""Checks the addresses on which a console may listen and each request, and sets headers of responses. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from mq.console.sessions import Session
from mq.protocol.access.address_patterns import is_loopback

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every answer. Nothing is cached: pages show messages, and a logout must clear the history, too."""

FORM_BYTES_MAX: Final = 256 * 1024
PORT_DIGITS: Final = 5
TOKEN_FIELD: Final = "token"  # noqa: S105 - the name of a field


def exposure_fault(listen_host: str, *, login: bool, encrypts: bool, plain_http: bool) -> str | None:
    """Return why a console must not listen at this address with these settings; None if it may."""
    if is_loopback(listen_host):
        return None
    if not login:
        return f"listen_host {listen_host} can be reached by others: set login, or use 127.0.0.1"
    if not encrypts and not plain_http:
        return (
            f"listen_host {listen_host} would get passwords in clear: set tls_certificate and tls_key, or "
            "plain_http behind a proxy that adds TLS"
        )
    return None


def host_fault(host: str | None, *, loopback_only: bool) -> str | None:
    """Return why to refuse a request for this ``Host``; None to accept it.

    A page of another site may let its own name resolve to 127.0.0.1, and then read the answers of this server.
    """
    if not host:
        return "the request has no Host"
    name = host.rpartition("]")[0] + "]" if host.startswith("[") else host.rpartition(":")[0] or host
    if loopback_only and name != "localhost" and not is_loopback(name.strip("[]")):
        return f"this console is reached as 127.0.0.1 or localhost, not as {name[:100]}"
    return None


def origin_fault(headers: Mapping[str, str], *, secure: bool) -> str | None:
    """Return why to refuse a change that another site may have sent; None if a page of this console sent it."""
    origin = headers.get("origin")
    if origin is None:
        return None if headers.get("sec-fetch-site") == "same-origin" else "the request does not say where it is from"
    schemes = ("https", "http") if not secure else ("https",)
    if origin not in tuple(f"{scheme}://{headers.get('host', '')}" for scheme in schemes):
        return "the request comes from another site"
    return None


def token_fault(session: Session, form: Mapping[str, str]) -> str | None:
    """Return why to refuse a form that does not come from a page of this session; None if it does."""
    if hmac.compare_digest(form.get(TOKEN_FIELD, "").encode(), session.csrf.encode()):
        return None
    return "the form is from an earlier session: go back, reload the page, and send it again"


def cookie_name(host: str, *, secure: bool) -> str:
    """Return the cookie's name, with the port of ``Host``: browsers send a cookie to all ports of a host.

    With HTTPS, the prefix makes browsers accept the cookie from this host alone.
    """
    port = host.rpartition(":")[2] if not host.endswith("]") else ""
    suffix = f"-{port}" if port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS and ":" in host else ""
    return ("__Host-raftmq" if secure else "raftmq") + suffix


def cookie(key: str, host: str, *, secure: bool) -> str:
    """Return the header that sets the cookie of a session. One without a key removes the cookie."""
    parts = [f"{cookie_name(host, secure=secure)}={key}", "Path=/", "HttpOnly", "SameSite=Strict"]
    return "; ".join(parts + (["Secure"] if secure else []) + ([] if key else ["Max-Age=0"]))
