"""How a proxy makes a certificate for itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mq.proxy.grpc import SelfSigned
from mq.tls import CertificateUnusable


def test_certificate_that_cannot_be_made_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CertificateUnusable, match="cannot make a certificate for itself: 1"):
        SelfSigned(["localhost"], lambda: 0)


def test_self_signed_certificate_does_not_import_cryptography() -> None:
    program = "from mq.proxy.grpc import SelfSigned; import sys; SelfSigned(['localhost'], lambda: 0)"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; print('cryptography' in sys.modules)"],
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"False"
