"""The settings that a running proxy needs, without the libraries that read and validate settings."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal, Self

import msgspec

from mq.addresses import metrics_address_beside, parse_metrics_address, parse_networks

_UTC_OFFSET: Final = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")
ProxyTlsMode = Literal["disabled", "permissive", "enforcing"]


class ProxyConfiguration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validated values of `mq.proxy.settings.ProxySettings`, which documents them."""

    listen_host: str
    listen_port: int
    namesrv: str
    metrics_listen: str | None
    tls_mode: ProxyTlsMode
    tls_certificate: str | None
    tls_key: str | None
    tls_clients_ca: str | None
    haproxy_networks: str
    connections_max: int
    calls_max: int
    signature_seconds_max: float
    signature_utc_offsets: str
    drain_seconds: float

    def to_json(self) -> str:
        """Convert the configuration to text for another process; `from_json` is the inverse."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of `to_json`. Raises msgspec.ValidationError or msgspec.DecodeError for another text."""
        return msgspec.json.decode(text, type=cls)

    def trusts(self, host: str) -> bool:
        """Return whether a proxy at this host may name its clients' addresses; see ``haproxy_networks``."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address):  # a listener on both kinds of addresses sees ::ffff:192.0.2.7
            address = address.ipv4_mapped or address
        return any(address in network for network in parse_networks(self.haproxy_networks))

    @property
    def utc_offsets_ms(self) -> tuple[int, ...]:
        """The offsets in ``signature_utc_offsets``, in milliseconds."""
        return parse_utc_offsets(self.signature_utc_offsets)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address at which metrics are served; None if that is disabled."""
        if self.metrics_listen is not None:
            return parse_metrics_address(self.metrics_listen)
        return metrics_address_beside((self.listen_host, self.listen_port))


def parse_utc_offsets(text: str) -> tuple[int, ...]:
    """Parse offsets such as +08:00, separated by commas, to milliseconds. Raises ValueError."""
    offsets: list[int] = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        match = _UTC_OFFSET.fullmatch(each)
        if match is None:
            raise ValueError(f"{each!r} is not an offset from UTC such as +08:00")
        minutes = int(match[2]) * 60 + int(match[3])
        offsets.append(minutes * 60_000 * (-1 if match[1] == "-" else 1))
    return tuple(offsets)
