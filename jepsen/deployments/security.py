"""Secures the servers and clients of a run by accounts and TLS. Clients read both from the environment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from checkers.events import TLS

ACCOUNTS, BOTH = "accounts", f"accounts+{TLS}"
SECURITY = (ACCOUNTS, TLS, BOTH)
ACCESS_KEY = "jepsen-administrator"


@dataclass(frozen=True, slots=True)
class Security:
    """Settings of brokers, and environment variables of name servers and clients, for secured connections."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def unavailable(name: str) -> str | None:
    """Return the reason that this security is not available here, as text; None if it is."""
    if TLS in name and find_spec("trustme") is None:
        return "not installed: the Python package trustme, which makes certificates"
    return None


@contextmanager
def secure_clients(name: str, directory: Path, hosts: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Secure the clients of this process until the block ends. Yields the settings of the brokers.

    Args:
        name: one of `SECURITY`, or empty for neither.
        directory: gets the files.
        hosts: addresses of all servers.
    """
    security = Security()
    for part, make in ((ACCOUNTS, _accounts), (TLS, _tls)):
        if part in name.split("+"):
            files = make(directory, hosts)
            security = Security({**security.settings, **files.settings}, {**security.environment, **files.environment})
    before = {variable: os.environ.get(variable) for variable in security.environment}
    os.environ.update(security.environment)
    try:
        yield security.settings
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value


def _accounts(directory: Path, hosts: Sequence[str]) -> Security:
    """Make one administrator, who signs every request."""
    key = secrets.token_hex(16)
    path = directory / "plain_acl.yml"
    path.touch(mode=0o600)
    path.write_text(f"accounts:\n- {{accessKey: {ACCESS_KEY}, secretKey: {key}, admin: true}}\n")
    return Security({"acl_file": str(path)}, {"RAFTMQ_ACCESS_KEY": ACCESS_KEY, "RAFTMQ_SECRET_KEY": key})


def _tls(directory: Path, hosts: Sequence[str]) -> Security:
    """Make a certificate for all servers, which then refuse clients and replicas without TLS."""
    import trustme  # only where certificates are wanted

    authority = trustme.CA()
    ca, certificate, key = (directory / name for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(str(ca))
    key_pair = authority.issue_cert(*hosts)
    certificate.write_bytes(b"".join(each.bytes() for each in key_pair.cert_chain_pems))
    key_pair.private_key_pem.write_to_path(str(key))
    settings = {"tls_mode": "enforcing", "tls_certificate": str(certificate), "tls_key": str(key)}
    return Security(
        {**settings, "tls_replication": "enforcing", "tls_namesrv": "true", "tls_namesrv_ca": str(ca)},
        {
            **{f"RAFTMQ_NAMESRV_{setting.upper()}": value for setting, value in settings.items()},
            "RAFTMQ_TLS": "on",
            "RAFTMQ_TLS_CA": str(ca),
        },
    )
