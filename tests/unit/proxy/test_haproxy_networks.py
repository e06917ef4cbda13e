"""Which load balancers the settings trust."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mq.proxy.settings import ProxySettings


def test_networks_and_addresses_are_trusted_and_nobody_else() -> None:
    settings = ProxySettings(haproxy_networks="10.0.0.0/8, 192.0.2.7,2001:db8::/32")
    assert all(settings.trusts(host) for host in ("10.1.2.3", "192.0.2.7", "2001:db8::5"))
    assert not any(settings.trusts(host) for host in ("11.1.2.3", "192.0.2.8", "::1", "unix", ""))
    assert not ProxySettings().trusts("127.0.0.1")


def test_an_ipv4_mapped_ipv6_address_counts_as_its_ipv4_address() -> None:
    settings = ProxySettings(haproxy_networks="10.0.0.0/8")
    assert settings.trusts("::ffff:10.1.2.3")
    assert not settings.trusts("::ffff:11.1.2.3")


def test_an_invalid_network_is_refused() -> None:
    with pytest.raises(ValidationError):
        ProxySettings(haproxy_networks="load-balancer")
