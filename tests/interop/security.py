"""How the servers of a run are secured, and what clients need for it: nothing, accounts and signatures, or TLS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import trustme

from mq.local_cluster import HOST

NONE, ACL, TLS = "none", "acl", "tls"

TITLES = {
    NONE: "Without accounts and without TLS",
    ACL: "With accounts: every request is signed",
    TLS: "With TLS: servers serve nobody without it",
}
"""By name, in the order of the report."""


@dataclass(frozen=True)
class Keys:
    """An account's access key and secret key."""

    access_key: str
    secret_key: str


CLIENT = Keys("interop-client", "client-SECRET-1")
"""May send to and consume every topic, for every group, and nothing else."""

ADMINISTRATOR = Keys("interop-administrator", "admin-SECRET-22")

READER = Keys("interop-reader", "reader-SECRET-333")
"""May consume every topic, and send to none."""

PROXY = Keys("interop-proxy", "proxy-SECRET-4444")
"""May make requests for users who have signed their calls."""

_ACCOUNTS = f"""
accounts:
- {{accessKey: {ADMINISTRATOR.access_key}, secretKey: {ADMINISTRATOR.secret_key}, admin: true}}
- {{accessKey: {CLIENT.access_key}, secretKey: {CLIENT.secret_key},
   defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
- {{accessKey: {READER.access_key}, secretKey: {READER.secret_key},
   defaultTopicPerm: SUB, defaultGroupPerm: SUB}}
- {{accessKey: {PROXY.access_key}, secretKey: {PROXY.secret_key}, proxy: true}}
"""


@dataclass(frozen=True)
class Security:
    """One way to secure the servers.

    ``settings`` are those of the brokers. ``environment`` is for this process: name servers take their settings from
    it, and our own client its keys. ``client`` and ``administrator`` sign requests of the programs under test, which
    trust servers whose certificate is of ``authority``; None for neither.
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    client: Keys | None = None
    administrator: Keys | None = None
    authority: Path | None = None

    @property
    def program(self) -> Mapping[str, str]:
        """What the programs under test find in their environment."""
        given: dict[str, str] = {}
        for prefix, keys in (("INTEROP_", self.client), ("INTEROP_ADMIN_", self.administrator)):
            if keys is not None:
                given |= {f"{prefix}ACCESS_KEY": keys.access_key, f"{prefix}SECRET_KEY": keys.secret_key}
        if self.authority is not None:
            given["INTEROP_TLS_CA"] = str(self.authority)
        return given

    @property
    def java_tls_options(self) -> Mapping[str, str]:
        """System properties with which RocketMQ's Java programs use TLS and trust the authority, and no other."""
        if self.authority is None:
            return {}
        return {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",  # its default trusts every server
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority),
        }

    def write_tools_file(self, home: Path) -> None:
        """The administrator's keys in the file in which RocketMQ's Java programs look for theirs."""
        if (keys := self.administrator) is not None:
            (home / "conf").mkdir(exist_ok=True)
            (home / "conf" / "tools.yml").write_text(f"accessKey: {keys.access_key}\nsecretKey: {keys.secret_key}\n")

    def signed_by(self, keys: Keys | None) -> Security:
        """The same servers, for programs with other keys or with none."""
        return replace(self, client=keys)

    def trusting(self, authority: Path | None) -> Security:
        """The same servers, for programs that trust another authority, or do not use TLS."""
        return replace(self, authority=authority)


@contextmanager
def secured(name: str, directory: Path) -> Iterator[Security]:
    """Servers and our own client are secured in this way as long as the block runs; files go to ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    security = {NONE: _unsecured, ACL: _with_accounts, TLS: _with_tls}[name](directory)
    before = {variable: os.environ.get(variable) for variable in security.environment}
    os.environ.update(security.environment)
    try:
        yield security
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value


def other_authority(directory: Path) -> Path:
    """The certificate of an authority that has signed nothing."""
    path = directory / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def _unsecured(directory: Path) -> Security:
    return Security(NONE)


def _with_accounts(directory: Path) -> Security:
    path = directory / "plain_acl.yml"
    path.write_text(_ACCOUNTS)
    return Security(
        ACL,
        settings={"acl_file": str(path)},
        environment={
            "RAFTMQ_ACCESS_KEY": ADMINISTRATOR.access_key,
            "RAFTMQ_SECRET_KEY": ADMINISTRATOR.secret_key,
        },
        client=CLIENT,
        administrator=ADMINISTRATOR,
    )


def _with_tls(directory: Path) -> Security:
    authority = trustme.CA()
    ca, certificate, key = (directory / name for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert(HOST)
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    settings = {"tls_mode": "enforcing", "tls_certificate": str(certificate), "tls_key": str(key)}
    return Security(
        TLS,
        settings={**settings, "tls_namesrv": "true", "tls_namesrv_ca": str(ca)},
        environment={
            **{f"RAFTMQ_NAMESRV_{setting.upper()}": value for setting, value in settings.items()},
            "RAFTMQ_TLS": "on",
            "RAFTMQ_TLS_CA": str(ca),
        },
        authority=ca,
    )
