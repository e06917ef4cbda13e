"""The settings of one broker process, which `mq.settings` reads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator
from pydantic_settings import SettingsConfigDict

from mq.addresses import Network, metrics_address_beside, parse_metrics_address, parse_networks
from mq.broker.setting_fields import (
    Address,
    ArchiveSettings,
    BulkSettings,
    ChangeableSettings,
    ConsumeSettings,
    MemorySettings,
    MessageSettings,
    NetworkSettings,
    PlaceInGroup,
    RaftSettings,
    SecuritySettings,
    StorageSettings,
    parse_address_list,
)
from mq.protocol.messages.delay import parse_levels
from mq.settings import ProcessSettings
from raftlog import parse_address
from raftlog.net.secret_file import FILE_NAME

LOG_DIRECTORY = "commitlog"
RESTORING_DIRECTORY = "commitlog.restoring"
"""Exists while `raftmq restore` runs, and after a failed restore."""
INDEX_DIRECTORY = "index"

ENTRY_OVERHEAD_BYTES = 48 + 8
"""Size of a log entry in its file without its body: header, and room for a mark after it."""

GROUP_MAX = 9
"""Maximum replicas of a new group; more would only slow down every message."""


def parse_peers(peers: str) -> dict[str, Address]:
    """Parse node ids and replication addresses in the form ``ID@HOST:PORT,...``. Raises ValueError."""
    members: dict[str, Address] = {}
    for part in peers.replace(";", ",").split(","):
        name, separator, address = part.strip().partition("@")
        if not separator or not name:
            raise ValueError(f"{part!r} in peers is not ID@HOST:PORT")
        if name in members:
            raise ValueError(f"peer {name!r} is given twice")
        members[name] = parse_address(address)
    return members


def derived_identity(cluster: str, group: str) -> str:
    """Return the default identity of a group's log."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{cluster}/{group}").hex


class BrokerSettings(
    ChangeableSettings,
    ArchiveSettings,
    StorageSettings,
    BulkSettings,
    ConsumeSettings,
    MessageSettings,
    MemorySettings,
    SecuritySettings,
    NetworkSettings,
    RaftSettings,
    PlaceInGroup,
    ProcessSettings,
):
    """All settings of a broker. Checks also those that depend on each other across groups.

    The fields of the last base come first.
    """

    # The groups are plain models, whose configurations have fewer keys.
    model_config = SettingsConfigDict(  # type: ignore[mutable-override]
        env_prefix="RAFTMQ_BROKER_", extra="forbid", frozen=True, allow_inf_nan=False
    )
    former_names: ClassVar[Mapping[str, str]] = {
        "admin_from": "admin_networks",
        "forward_bytes_max": "forwarded_bytes_max",
        "forward_requests_max": "forwarded_requests_max",
        "forward_seconds_max": "forwarded_seconds_max",
        "held_bytes_max": "long_poll_bytes_max",
        "held_pulls_max": "long_polls_max",
        "index_seconds": "key_index_poll_seconds",
        "join": "joins_group",
        "output_bytes_max": "client_unread_replies_bytes_max",
        "pending_bytes_max": "uncommitted_bytes_max",
        "unfinished_bytes_max": "partial_request_bytes_max",
        "unfinished_seconds_max": "partial_request_seconds_max",
        "unread_bytes_max": "unread_replies_bytes_max",
    }

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> BrokerSettings:
        if parse_address(self.advertise or self.listen)[0] in ("0.0.0.0", "::"):  # noqa: S104 - refused, not bound
            raise ValueError(
                "clients cannot connect to the address 0.0.0.0: set `advertise` to an address that they can use"
            )
        if self.joins_group:
            if "peers" in self.model_fields_set and self.node_id in parse_peers(self.peers):
                raise ValueError(f"node {self.node_id!r} is in `peers`: it then creates the group, and cannot join it")
            if self.replication_listen is None:
                raise ValueError("a node that joins needs `replication_listen`, where other replicas reach it")
        elif len(self.members) > GROUP_MAX:
            raise ValueError(f"a group has at most {GROUP_MAX} replicas, {len(self.members)} are given")
        elif self.node_id not in self.members:
            raise ValueError(
                f"node {self.node_id!r} is not among its peers {sorted(self.members)}; to add it to a group, use "
                "`joins_group`"
            )
        if self.has_tiers and self.archive_url is None:
            raise ValueError(
                "local_retention_hours and local_retention_bytes need archive_url: they delete archived files only"
            )
        if self.has_archive_retention and self.archive_url is None:
            raise ValueError(
                "archive_retention_hours and archive_retention_bytes need archive_url: there is no archive"
            )
        if self.message_bytes_max > self._message_bytes_limit(self.segment_bytes):
            raise ValueError(
                f"a message of {self.message_bytes_max} bytes does not fit a segment of {self.segment_bytes}"
            )
        return self

    @staticmethod
    def _message_bytes_limit(segment_bytes: int) -> int:
        return segment_bytes - 65536 - ENTRY_OVERHEAD_BYTES

    def with_segment_bytes(self, segment_bytes: int) -> Self:
        """Return a copy of these settings with the log file size of the directory or the group.

        If ``message_bytes_max`` is not set, it is lowered to what such a file has room for.

        Raises:
            ValueError: ``message_bytes_max`` was set, and does not fit into such a file.
        """
        limit = self._message_bytes_limit(segment_bytes)
        if self.message_bytes_max > limit and "message_bytes_max" not in self.model_fields_set:
            return self.model_copy(update={"segment_bytes": segment_bytes, "message_bytes_max": limit})
        if self.message_bytes_max > limit:
            raise ValueError(
                f"the segment files of this group have {segment_bytes} bytes (segment_bytes), too small for a "
                f"message of {self.message_bytes_max} bytes: set message_bytes_max to {limit} or less"
            )
        return self.model_copy(update={"segment_bytes": segment_bytes})

    @property
    def has_segment_bytes(self) -> bool:
        """Whether the size of log files is configured."""
        return "segment_bytes" in self.model_fields_set

    @property
    def has_archive_retention(self) -> bool:
        """Whether archived files are deleted after some time or above some size."""
        return self.archive_retention_hours is not None or self.archive_retention_bytes is not None

    @property
    def has_tiers(self) -> bool:
        """Whether this broker serves archived messages after their local files were deleted."""
        return self.local_retention_hours is not None or self.local_retention_bytes is not None

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of levels 1, 2 and so on, in milliseconds."""
        return parse_levels(self.delay_levels)

    @property
    def members(self) -> dict[str, Address]:
        """The replication addresses of the group's founding members by node id; empty for a node that joins later."""
        return {} if self.joins_group else parse_peers(self.peers)

    @property
    def replication_address(self) -> Address:
        """The address to which other replicas connect."""
        return self.members[self.node_id] if self.replication_listen is None else parse_address(self.replication_listen)

    @property
    def admin_network_list(self) -> list[Network]:
        """The networks, besides this host, from which the group may be changed."""
        return parse_networks(self.admin_networks)

    @property
    def namesrv_addresses(self) -> list[Address]:
        """The addresses of the name servers at which the broker registers."""
        return parse_address_list(self.namesrv)

    @property
    def disk_pause_ratio(self) -> float:
        """The used fraction of the disk from which on a follower accepts no more entries."""
        return max(0.95, (1 + self.disk_full_ratio) / 2)

    @property
    def log_dir(self) -> Path:
        """The directory of the replicated log. Derived files are next to it."""
        return self.data_dir / LOG_DIRECTORY

    @property
    def secret_path(self) -> Path:
        """The path of the group's secret."""
        return self.data_dir / FILE_NAME if self.secret_file is None else self.secret_file

    @property
    def listen_address(self) -> Address:
        """The address to which clients connect."""
        return parse_address(self.listen)

    @property
    def metrics_address(self) -> Address | None:
        """The address for scrapes of metrics; None to disable them."""
        if self.metrics_listen is not None:
            return parse_metrics_address(self.metrics_listen)
        return metrics_address_beside(self.listen_address)

    @property
    def identity(self) -> str:
        """The identity that all replicas of this log share."""
        return self.cluster_id or derived_identity(self.cluster, self.group)
