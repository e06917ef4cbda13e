"""URLs and options of kombu."""

from __future__ import annotations

import kombu
import pytest

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.celery.address import Address, address_of
from mq.client.net.credentials import CredentialsInvalid


def address(url: str, *, tls: bool = False, **options: object) -> Address:
    return address_of(kombu.Connection(url, transport_options=options), tls=tls)


def test_broker_url_has_defaults() -> None:
    found = address("raftmq://")
    assert found.name_servers == ("localhost:9876",)
    assert found.prefix == "celery"
    assert (found.access_key, found.tls) == (None, None)


def test_accounts_several_name_servers_and_a_virtual_host() -> None:
    found = address("raftmq://orders1:s3cr%40t-of-orders@ns1,ns2,ns3:9876/shop")
    assert found.name_servers == ("ns1:9876", "ns2:9876", "ns3:9876")
    assert (found.access_key, found.secret_key, found.prefix) == ("orders1", "s3cr@t-of-orders", "shop")
    assert "s3cr" not in repr(found)
    assert found.remoting_settings().credentials is not None


def test_broker_url_accepts_ipv6() -> None:
    assert address("raftmq://[::1]:9999").name_servers == ("[::1]:9999",)


@pytest.mark.parametrize("url", ["raftmqs://host", "raftmq://host?ssl=true"])
def test_broker_url_enables_tls(url: str) -> None:
    assert address(url, tls=url.startswith("raftmqs")).remoting_settings().tls is not None


@pytest.mark.parametrize("text", ["false", "False", "no", "off", "0"])
def test_url_overrides_the_tls_option(text: str) -> None:
    assert address(f"raftmq://host?ssl={text}").tls is None
    assert address(f"raftmqs://host?ssl={text}", tls=True).tls is not None


def test_tls_files_are_options_of_url() -> None:
    assert dict(address("raftmq://host?ssl_ca_certs=/etc/ca.pem").tls or ()) == {"ca_certs": "/etc/ca.pem"}
    with pytest.raises(ValueError, match="unknown options for TLS: version"):
        address("raftmq://host?ssl_version=3")


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_unreadable_certificate_is_reported(option: str) -> None:
    with pytest.raises(CredentialsInvalid, match=f"{option.removeprefix('ssl_')} /missing.pem: No such file"):
        address(f"raftmqs://host?{option}=/missing.pem", tls=True).remoting_settings()


def test_secret_key_needs_an_access_key() -> None:
    with pytest.raises(CredentialsInvalid, match="a secret key without an access key: raftmq://KEY:SECRET@host"):
        address("raftmq://:s3cret-of-orders@host").remoting_settings()


@pytest.mark.parametrize("value", [0, -1, "soon"])
def test_invalid_visibility_timeout_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"transport option visibility_timeout is .*; it must be a positive number"):
        address("raftmq://", visibility_timeout=value)


def test_option_without_a_none_value_refuses_none() -> None:
    with pytest.raises(ValueError, match="transport option publish_timeout is None"):
        address("raftmq://", publish_timeout=None)
    assert address("raftmq://", redeliveries_max=None).redeliveries_max is None


def test_visibility_timeout_is_capped_at_twelve_hours() -> None:
    """Otherwise messages were renewed when their time was over at the broker."""
    assert address("raftmq://", visibility_timeout=7 * 86400).visibility_timeout == 12 * 3600


def test_short_secret_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="the secret key has 3 characters"):
        address("raftmq://somebody:abc@host").remoting_settings()
