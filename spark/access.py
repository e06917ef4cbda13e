"""The account and TLS settings with which this process speaks to name servers and brokers, from its environment.

The SDK and the command line use the same variables. No option of a query has keys: Spark shows options in its plans and
its console.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

    from mq.credentials import Credentials

CREDENTIALS: Final = "RAFTMQ_CREDENTIALS"
TLS: Final = "RAFTMQ_TLS"
TLS_CA: Final = "RAFTMQ_TLS_CA"
TLS_CERTIFICATE: Final = "RAFTMQ_TLS_CERTIFICATE"
TLS_KEY: Final = "RAFTMQ_TLS_KEY"
_KEYS: Final = ("RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY")
FILES: Final = (CREDENTIALS, TLS_CA, TLS_CERTIFICATE, TLS_KEY)


class Access(NamedTuple):
    """The account whose keys sign each request, and the TLS settings; None where the process has none."""

    credentials: Credentials | None
    tls: ssl.SSLContext | None

    @property
    def who(self) -> str:
        """Describe the account in texts for people, without its secret key."""
        return "without an account" if self.credentials is None else f"as {self.credentials.access_key}"


NOBODY: Final = Access(None, None)


def access(environment: Mapping[str, str] | None = None) -> Access:
    """Read the access settings from the environment, by default of this process. Reads changed files again.

    Raises CredentialsInvalid for keys, files or values that cannot be used.
    """
    variables = os.environ if environment is None else environment
    values = tuple((name, variables[name]) for name in (*_KEYS, TLS, *FILES) if name in variables)
    if not values:
        return NOBODY  # without an import that executors may not have
    stamps = tuple(_mtime_ns(value) for name, value in values if name in FILES)
    return _read(values, stamps)


@lru_cache(maxsize=4)
def _read(values: tuple[tuple[str, str], ...], stamps: tuple[int, ...]) -> Access:
    from mq.client.net.credentials import tls_from_environment
    from mq.credentials import Credentials, CredentialsInvalid

    environment = dict(values)
    try:
        return Access(Credentials.from_environment(environment), tls_from_environment(environment))
    except OSError as error:
        raise CredentialsInvalid(f"{error.filename}: {error.strerror}") from error


def use(account: Mapping[str, str]) -> None:
    """Make this process and its children use this account. Settings that it lacks stay unchanged.

    Raises CredentialsInvalid.
    """
    if CREDENTIALS in account:  # the keys would be taken, and not the file
        for name in _KEYS:
            os.environ.pop(name, None)
    os.environ.update(account)
    access()


def for_executors() -> dict[str, str]:
    """Return the variables to set on the executors of a cluster: names of files that exist on them. Keys are left out,
    since Spark shows the environment of its executors.
    """
    return {name: os.environ[name] for name in (TLS, *FILES) if name in os.environ}


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # reading it says why
