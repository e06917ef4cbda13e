"""Settings of one broker process; `mq.settings` reads them."""

from __future__ import annotations

import ipaddress
import uuid
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from mq.broker.limits import CHECKS_MAX
from mq.protocol.bulk import BULK_BYTES_MAX
from mq.protocol.delay import DELAY_LEVELS_MS, format_levels, parse_levels
from mq.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from mq.settings import ProcessSettings, metrics_address_beside, parse_metrics_address
from mq.tls import TlsMode, check_tls
from raftlog import parse_address
from raftlog.net.secret_file import FILE_NAME

Address = tuple[str, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MIB = 1024 * 1024

LOG_DIRECTORY = "commitlog"
RESTORING_DIRECTORY = "commitlog.restoring"
"""Exists while `raftmq restore` runs, and after a failed restore."""
INDEX_DIRECTORY = "index"

ENTRY_OVERHEAD_BYTES = 48 + 8
"""Size of a log entry in its file without its body: header, and room for a mark after it."""

MESSAGE_BYTES_LIMIT = FRAME_BYTES_MAX - 4 - HEADER_BYTES_MAX
"""No client frame can contain a larger body."""

GROUP_MAX = 9
"""Maximum replicas of a new group; more would only slow down every message."""


def parse_peers(peers: str) -> dict[str, Address]:
    """Ids and replication addresses from ``ID@HOST:PORT,...``. Raises ValueError."""
    members: dict[str, Address] = {}
    for part in peers.replace(";", ",").split(","):
        name, separator, address = part.strip().partition("@")
        if not separator or not name:
            raise ValueError(f"{part!r} in peers is not ID@HOST:PORT")
        if name in members:
            raise ValueError(f"peer {name!r} is given twice")
        members[name] = parse_address(address)
    return members


def _addresses(text: str) -> list[Address]:
    return [parse_address(part) for part in text.split(";") if part.strip()]


def _networks(text: str) -> list[Network]:
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def derived_identity(cluster: str, group: str) -> str:
    """The default identity of a group's log."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{cluster}/{group}").hex


class BrokerSettings(ProcessSettings):
    """All settings of a broker. Names and peers must be equal on all replicas of a group; the rest may differ."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_BROKER_", extra="forbid", frozen=True, allow_inf_nan=False)

    cluster: str = Field("DefaultCluster", description="name of the cluster in the route")
    group: str = Field("broker-a", description="broker name: one Raft group, one entry in the route")
    node_id: str = Field("n0", pattern=r"^[a-z]\d+$", description="letter and number; the number gives the broker id")
    peers: str = Field(
        "n0@127.0.0.1:40911", description="all replicas, including this one: ID@HOST:PORT, comma separated"
    )
    join: bool = Field(False, description="start without members and wait until a leader adds this node to its group")
    replication_listen: str | None = Field(
        None, description="where other replicas connect; default: this node's address in `peers`"
    )
    priority: int = Field(0, ge=-1000, le=1000, description="preference as leader: the highest priority leads")
    lease_reads: bool = Field(
        False, description="the leader reads without asking a majority; needs clocks of equal rate"
    )
    format_level_max: int | None = Field(
        None,
        ge=1,
        description="hold the group at this format level, so that a downgrade stays possible; default: it rises "
        "when all replicas support a higher one",
    )
    catch_up_bytes_per_second: int = Field(
        50 * MIB, ge=MIB, description="limit per replica that fetches whole segment files"
    )
    admin_from: str = Field(
        "",
        description="networks that may change the group, in addition to this host, such as 10.0.0.0/8, comma separated",
    )
    listen: str = Field("127.0.0.1:10911", description="where clients connect")
    advertise: str | None = Field(None, description="address in the route, when it differs from `listen`")
    metrics_listen: str | None = Field(
        None,
        description="where /metrics, /healthz and /readyz are served, HOST:PORT, or `off`; default: the port of "
        "`listen` plus 100",
    )
    metrics_series_max: int = Field(
        10_000, ge=100, description="series of metrics by topic and consumer group; the broker drops and counts more"
    )
    namesrv: str = Field("", description="name servers, HOST:PORT separated by semicolons")
    data_dir: Path = Field(Path("data"), description="directory of the log and of everything derived from it")
    cluster_id: str | None = Field(
        None, description="identity of the replicated log; default: derived from cluster and group"
    )

    acl_file: Path | None = Field(
        None,
        description="accounts and permissions of clients, as RocketMQ's plain_acl.yml, the same on all replicas; read "
        "again when it changes; default: every client has full access",
    )
    tls_mode: TlsMode = Field(
        "disabled",
        description="whether clients use TLS: disabled, permissive (optional, on the same port), or enforcing",
    )
    tls_certificate: Path | None = Field(
        None, description="PEM file with the certificate chain; read again when it changes"
    )
    tls_key: Path | None = Field(None, description="PEM file with the key, without a password")
    tls_clients_ca: Path | None = Field(
        None, description="clients must have a certificate that one of these authorities signed (PEM)"
    )
    tls_replication: TlsMode = Field(
        "disabled", description="TLS between replicas: disabled, permissive (optional), or enforcing"
    )
    tls_namesrv: bool = Field(False, description="connect to name servers with TLS")
    tls_namesrv_ca: Path | None = Field(None, description="authorities of name servers (PEM); default: the system's")

    secret_file: Path | None = Field(
        None, description="the secret of the group, the same on all replicas; default: group.secret in `data_dir`"
    )

    durability: Literal["quorum-fsync", "quorum-memory"] = Field(
        "quorum-fsync", description="what an acknowledgement means: on disk, or only in memory, on a majority"
    )
    segment_bytes: int = Field(
        1024 * MIB,
        ge=64 * 1024,
        description="size of a segment file, the same on all replicas; a node that joins takes it from its group",
    )
    message_bytes_max: int = Field(
        4 * MIB,
        ge=1024,
        le=MESSAGE_BYTES_LIMIT,
        description="largest message body; a node that joins lowers the default to what fits `segment_bytes`",
    )
    entry_bytes_max: int = Field(
        256 * 1024, ge=1024, le=16 * MIB, description="maximum size of a log entry with several messages"
    )
    rounds_in_flight: int = Field(1, ge=1, description="entries in flight; with more of them, entries are smaller")
    pending_bytes_max: int = Field(64 * MIB, ge=MIB, description="unacknowledged messages; above: SYSTEM_BUSY")
    forward_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="bytes of requests forwarded to the leader; above: SYSTEM_BUSY"
    )
    forward_requests_max: int = Field(10_000, ge=1, description="number of requests forwarded to the leader")
    forward_seconds_max: float = Field(
        2.5, gt=0, description="how long forwarded requests wait for a leader; RocketMQ clients wait 3 s"
    )

    heartbeat_seconds: float = Field(0.2, gt=0, description="interval of the leader's heartbeats to followers")
    election_timeout_seconds_min: float = Field(
        1.5, gt=0, description="silence of the leader after which a follower may stand for election"
    )
    election_timeout_seconds_max: float = Field(
        3.0, gt=0, description="each follower chooses a random timeout between the minimum and this one"
    )

    auto_create_topics: bool = Field(True, description="create a topic when the first message is sent to it")
    default_topic_queues: int = Field(
        8, ge=1, le=1024, description="maximum number of queues of such a topic; clients usually ask for 4"
    )
    auto_create_groups: bool = Field(True, description="create a consumer group when it first consumes")
    store_reply_message: bool = Field(True, description="store replies, in addition to pushing them")
    transactions: bool = Field(True, description="producers may send transactional messages")
    transaction_timeout_seconds: float = Field(
        6.0, gt=0, description="age of an open transaction at its first check-back"
    )
    transaction_check_seconds: float = Field(30.0, gt=0, description="time between check-backs")
    transaction_checks_max: int = Field(
        15, ge=1, le=CHECKS_MAX, description="check-backs without an outcome, after which a transaction is given up"
    )
    sql_filter: bool = Field(True, description="allow SQL92 filters")
    delay_levels: str = Field(
        format_levels(DELAY_LEVELS_MS), description="delays of levels 1, 2, ...; units s, m, h, d"
    )
    timer_delay_max_seconds: int = Field(
        40 * 86_400, ge=1, le=366 * 86_400, description="maximum delay of a timed message"
    )
    pull_messages_max: int = Field(32, ge=1, description="messages per pull")
    pull_bytes_max: int = Field(256 * 1024, ge=1024, description="bytes of messages per pull")
    slow_consumer_bytes: int | None = Field(
        None,
        ge=0,
        description="a consumer with this lag reads from a follower; default: 40 % of memory",
    )
    slow_pull_messages_max: int = Field(8, ge=1, description="messages per pull for such a consumer")
    slow_pull_bytes_max: int = Field(64 * 1024, ge=1024, description="bytes of messages per pull for such a consumer")
    held_pulls_max: int = Field(100_000, ge=1, description="pulls that wait for messages; the same number of pops")
    held_bytes_max: int = Field(128 * MIB, ge=MIB, description="memory of waiting pulls; above: answered at once")
    connections_max: int = Field(20_000, ge=1, description="above this, the broker closes new connections at once")
    unfinished_bytes_max: int = Field(
        128 * MIB, ge=MIB, description="partly received requests of all clients; above, further ones wait unread"
    )
    unfinished_seconds_max: float = Field(
        30.0, ge=1, description="close a connection if no more bytes of its request arrive for this time"
    )
    unread_bytes_max: int = Field(
        256 * MIB, ge=MIB, description="unread replies of all clients; above, those with the most are dropped"
    )
    output_bytes_max: int = Field(64 * MIB, ge=MIB, description="unread replies of one client; above, it is dropped")
    client_expiry_seconds: float = Field(120.0, gt=0, description="forget a client without a heartbeat for this time")
    idle_seconds_max: float = Field(120.0, gt=0, description="close an idle connection after this time")
    offset_commit_seconds: float = Field(0.2, gt=0, description="how long one-way offset commits are collected")
    register_seconds: float = Field(30.0, ge=1, le=60, description="interval of registrations at name servers")
    checkpoint_seconds: float = Field(
        10.0, gt=0, description="interval of checkpoints; a start applies only the log after the last one"
    )
    index_seconds: float = Field(1.0, gt=0, description="how often the index builder looks for work")

    bulk_reads_max: int = Field(
        4, ge=1, le=64, description="concurrent bulk reads, each with up to 16 MiB of memory; 8 times as many wait"
    )
    bulk_bytes_max: int = Field(BULK_BYTES_MAX, ge=64 * 1024, le=BULK_BYTES_MAX, description="messages in one answer")
    bulk_bytes_per_second: int = Field(
        1024 * MIB, ge=MIB, description="throughput of bulk readers; above, they are told when to retry"
    )
    log_leases_max: int = Field(
        1024, ge=1, description="log leases, with which readers keep segment files from retention"
    )
    log_lease_seconds_max: float = Field(600.0, gt=0, description="maximum duration of a log lease")

    retention_hours: float = Field(72.0, gt=0, description="how long a segment file is kept after its newest message")
    retention_bytes: int | None = Field(None, ge=MIB, description="maximum size of the log")
    delete_when: int = Field(4, ge=-1, le=23, description="hour of the day for deleting expired files; -1: any")
    retention_check_seconds: float = Field(10.0, gt=0, description="how often retention runs")
    disk_warn_ratio: float = Field(0.75, gt=0, le=1, description="disk use at which the broker warns")
    disk_expire_ratio: float = Field(
        0.80, gt=0, le=1, description="disk use at which files are deleted at any hour, and early as the last resort"
    )
    disk_full_ratio: float = Field(0.90, gt=0, le=1, description="disk use at which the broker refuses messages")

    @field_validator("listen", "advertise", "replication_listen")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None:
            parse_address(value)
        return value

    @field_validator("namesrv")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        _addresses(value)
        return value

    @field_validator("admin_from")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        _networks(value)
        return value

    @field_validator("metrics_listen")
    @classmethod
    def _is_metrics_address(cls, value: str | None) -> str | None:
        if value is not None:
            parse_metrics_address(value)
        return value

    @field_validator("delay_levels")
    @classmethod
    def _is_level_table(cls, value: str) -> str:
        parse_levels(value)
        return value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> BrokerSettings:
        if parse_address(self.advertise or self.listen)[0] in ("0.0.0.0", "::"):  # noqa: S104 - refused, not bound
            raise ValueError(
                "clients cannot connect to the address 0.0.0.0: set `advertise` to an address that they can use"
            )
        if self.join:
            if "peers" in self.model_fields_set and self.node_id in parse_peers(self.peers):
                raise ValueError(
                    f"node {self.node_id!r} is among its peers: then it creates the group and cannot join it"
                )
            if self.replication_listen is None:
                raise ValueError("a node that joins needs `replication_listen`, where other replicas reach it")
        elif len(self.members) > GROUP_MAX:
            raise ValueError(f"a group has at most {GROUP_MAX} replicas, {len(self.members)} are given")
        elif self.node_id not in self.members:
            raise ValueError(
                f"node {self.node_id!r} is not among its peers {sorted(self.members)}; to add it to a group, use `join`"
            )
        if not self.disk_warn_ratio <= self.disk_expire_ratio <= self.disk_full_ratio:
            raise ValueError("disk ratios must ascend: disk_warn_ratio <= disk_expire_ratio <= disk_full_ratio")
        check_tls("tls_mode", self.tls_mode, self.tls_certificate, self.tls_key)
        check_tls("tls_replication", self.tls_replication, self.tls_certificate, self.tls_key)
        if self.election_timeout_seconds_min < 3 * self.heartbeat_seconds:
            raise ValueError("election_timeout_seconds_min must be at least three heartbeats")
        if self.election_timeout_seconds_max < 1.2 * self.election_timeout_seconds_min:
            raise ValueError("election_timeout_seconds_max must exceed the minimum by at least a fifth")
        if self.message_bytes_max > self._message_bytes_limit(self.segment_bytes):
            raise ValueError(
                f"a message of {self.message_bytes_max} bytes does not fit a segment of {self.segment_bytes}"
            )
        return self

    @staticmethod
    def _message_bytes_limit(segment_bytes: int) -> int:
        return segment_bytes - 65536 - ENTRY_OVERHEAD_BYTES

    def with_segment_bytes(self, segment_bytes: int) -> Self:
        """These settings with the log file size of the directory or group.

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
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delays of levels 1, 2, and so on, in milliseconds."""
        return parse_levels(self.delay_levels)

    @property
    def members(self) -> dict[str, Address]:
        """Ids and replication addresses of the group's founding members; empty for a node that joins later."""
        return {} if self.join else parse_peers(self.peers)

    @property
    def replication_address(self) -> Address:
        """Where other replicas connect."""
        return self.members[self.node_id] if self.replication_listen is None else parse_address(self.replication_listen)

    @property
    def admin_networks(self) -> list[Network]:
        """Networks, besides this host, from which the group may be changed."""
        return _networks(self.admin_from)

    @property
    def namesrv_addresses(self) -> list[Address]:
        """The name servers to register at."""
        return _addresses(self.namesrv)

    @property
    def disk_pause_ratio(self) -> float:
        """Disk use at which a follower accepts no more entries."""
        return max(0.95, (1 + self.disk_full_ratio) / 2)

    @property
    def log_dir(self) -> Path:
        """Directory of the replicated log; derived files are next to it."""
        return self.data_dir / LOG_DIRECTORY

    @property
    def secret_path(self) -> Path:
        """Path of the group's secret."""
        return self.data_dir / FILE_NAME if self.secret_file is None else self.secret_file

    @property
    def listen_address(self) -> Address:
        """Where clients connect."""
        return parse_address(self.listen)

    @property
    def metrics_address(self) -> Address | None:
        """Address for scrapes of metrics; None to disable them."""
        if self.metrics_listen is not None:
            return parse_metrics_address(self.metrics_listen)
        return metrics_address_beside(self.listen_address)

    @property
    def identity(self) -> str:
        """The identity that all replicas of this log share."""
        return self.cluster_id or derived_identity(self.cluster, self.group)
