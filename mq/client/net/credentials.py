"""Reads the client's TLS settings and its keys for signing requests from the environment."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from mq.credentials import Credentials, CredentialsInvalid

__all__ = ["Credentials", "CredentialsInvalid", "tls_from_environment"]

TLS_VARIABLE = "RAFTMQ_TLS"
TLS_CA_VARIABLE = "RAFTMQ_TLS_CA"
TLS_CERTIFICATE_VARIABLE = "RAFTMQ_TLS_CERTIFICATE"
TLS_KEY_VARIABLE = "RAFTMQ_TLS_KEY"


def tls_from_environment(environment: Mapping[str, str] | None = None) -> ssl.SSLContext | None:
    """Make TLS settings from `RAFTMQ_TLS`: `on` for TLS; None if it is `off` or unset.

    Server certificates must come from an authority of the system, or from one in the PEM file named by `RAFTMQ_TLS_CA`,
    and match the host names in the addresses. `RAFTMQ_TLS_CERTIFICATE` and `RAFTMQ_TLS_KEY` name PEM files for servers
    that require client certificates.

    Raises CredentialsInvalid if a value or a file is invalid.
    """
    variables = os.environ if environment is None else environment
    mode = variables.get(TLS_VARIABLE, "off")
    if mode not in ("on", "off"):
        raise CredentialsInvalid(f"{TLS_VARIABLE} is {mode!r}, neither on nor off")
    if mode == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=variables.get(TLS_CA_VARIABLE))
        if certificate := variables.get(TLS_CERTIFICATE_VARIABLE):
            context.load_cert_chain(certificate, variables.get(TLS_KEY_VARIABLE))
    except (OSError, ValueError) as error:
        names = ", ".join(variables[name] for name in _TLS_FILES if name in variables)
        raise CredentialsInvalid(f"{names}: {getattr(error, 'strerror', None) or error}") from error
    return context


_TLS_FILES = (TLS_CA_VARIABLE, TLS_CERTIFICATE_VARIABLE, TLS_KEY_VARIABLE)
