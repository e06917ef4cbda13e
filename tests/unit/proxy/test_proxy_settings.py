"""Settings of a proxy: trusted load balancers, how they reach the serving process; a certificate made for itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from mq.certificate import CertificateUnusable
from mq.proxy.configuration import ProxyConfiguration
from mq.proxy.grpc import SelfSigned
from mq.proxy.settings import ProxySettings


def test_only_configured_networks_are_trusted() -> None:
    settings = ProxySettings(haproxy_networks="10.0.0.0/8, 192.0.2.7,2001:db8::/32").configuration()
    assert all(settings.trusts(host) for host in ("10.1.2.3", "192.0.2.7", "2001:db8::5"))
    assert not any(settings.trusts(host) for host in ("11.1.2.3", "192.0.2.8", "::1", "unix", ""))
    assert not ProxySettings().configuration().trusts("127.0.0.1")


def test_ipv4_mapped_ipv6_address_equals_its_ipv4_address() -> None:
    settings = ProxySettings(haproxy_networks="10.0.0.0/8").configuration()
    assert settings.trusts("::ffff:10.1.2.3")
    assert not settings.trusts("::ffff:11.1.2.3")


def test_invalid_network_is_refused() -> None:
    with pytest.raises(ValidationError):
        ProxySettings(haproxy_networks="load-balancer")


def test_zones_of_clients_are_offsets_from_utc() -> None:
    settings = ProxySettings(signature_utc_offsets="+08:00, -03:30,").configuration()
    assert settings.utc_offsets_ms == (8 * 3_600_000, -3 * 3_600_000 - 30 * 60_000)
    assert ProxySettings().configuration().utc_offsets_ms == ()
    for wrong in ("8", "Asia/Shanghai", "+15:00", "+08:60", "+08:00;+09:00"):
        with pytest.raises(ValidationError, match="not an offset from UTC"):
            ProxySettings(signature_utc_offsets=wrong)


def test_settings_reach_the_process_that_serves() -> None:
    given = ProxySettings(listen_port=18081, tls_certificate=Path("a.pem"), tls_key=Path("a.key"), drain_seconds=2.5)
    received = ProxyConfiguration.from_json(given.configuration().to_json())
    assert received == given.configuration()
    assert (received.tls_certificate, received.drain_seconds) == ("a.pem", 2.5)
    assert received.metrics_address == ("0.0.0.0", 18181)


def test_failed_certificate_creation_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
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
