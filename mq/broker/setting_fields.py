"""The settings of a broker in groups. Each group checks its own settings.

`BrokerSettings` in `mq.broker.settings` is all of them, and users set each by its name, whatever its group.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mq.addresses import parse_metrics_address, parse_networks
from mq.broker.limits import CHECKS_MAX
from mq.protocol.bulk import BULK_BYTES_MAX
from mq.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from mq.protocol.messages.delay import DELAY_LEVELS_MS, format_levels, parse_levels
from mq.settings import validator
from mq.tls_or_plain import TlsMode, check_tls
from raftlog import parse_address
from raftlog.segment.s3_storage import SECRET_IN_URL, has_secret, why_no_bucket

Address = tuple[str, int]

MIB = 1024 * 1024

MESSAGE_BYTES_LIMIT = FRAME_BYTES_MAX - 4 - HEADER_BYTES_MAX
"""No client frame can contain a larger body."""


def parse_address_list(text: str) -> list[Address]:
    """Parse addresses in the form ``HOST:PORT;...``. Raises ValueError."""
    return [parse_address(part) for part in text.split(";") if part.strip()]


class SettingGroup(BaseModel):
    """The base class of groups of settings."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    why_fixed: ClassVar[str] = ""
    """The reason why its settings cannot change while the broker runs; empty if they can."""


class PlaceInGroup(SettingGroup):
    """The group that a broker belongs to, and its identity as a replica of it.

    Names and peers must be equal on all replicas of a group; most other settings may differ.
    """

    why_fixed: ClassVar[str] = "it says which replica this is; members change with `raftmq group`"

    cluster: str = Field("DefaultCluster", description="name of the cluster in the route")
    group: str = Field("broker-a", description="broker name: one Raft group, one entry in the route")
    cluster_id: str | None = Field(
        None, description="identity of the replicated log; default: derived from cluster and group"
    )
    node_id: str = Field("n0", pattern=r"^[a-z]\d+$", description="letter and number; the number gives the broker id")
    peers: str = Field(
        "n0@127.0.0.1:40911", description="all replicas, including this one: ID@HOST:PORT, comma separated"
    )
    joins_group: bool = Field(
        False, description="start without members and wait until a leader adds this node to its group"
    )
    replication_listen: str | None = Field(
        None, description="where other replicas connect; default: this node's address in `peers`"
    )

    _is_replication_address = validator(parse_address, "replication_listen")


class RaftSettings(SettingGroup):
    """The role of a replica in its group: elections, leases, and what it writes to the log."""

    why_fixed: ClassVar[str] = "elections and the log are set up with it"

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
    durability: Literal["quorum-fsync", "quorum-memory"] = Field(
        "quorum-fsync", description="what an acknowledgement means: on disk, or only in memory, on a majority"
    )
    segment_bytes: int = Field(
        1024 * MIB,
        ge=64 * 1024,
        description="size of a segment file, the same on all replicas; a node that joins takes it from its group",
    )
    entry_bytes_max: int = Field(
        256 * 1024, ge=1024, le=16 * MIB, description="maximum size of a log entry with several messages"
    )
    rounds_in_flight: int = Field(1, ge=1, description="entries in flight; with more of them, entries are smaller")
    heartbeat_seconds: float = Field(0.2, gt=0, description="interval of the leader's heartbeats to followers")
    election_timeout_seconds_min: float = Field(
        1.5, gt=0, description="silence of the leader after which a follower may stand for election"
    )
    election_timeout_seconds_max: float = Field(
        3.0, gt=0, description="each follower chooses a random timeout between the minimum and this one"
    )

    @model_validator(mode="after")
    def _elections_wait_for_heartbeats(self) -> Self:
        if self.election_timeout_seconds_min < 3 * self.heartbeat_seconds:
            raise ValueError("election_timeout_seconds_min must be at least three heartbeats")
        if self.election_timeout_seconds_max < 1.2 * self.election_timeout_seconds_min:
            raise ValueError("election_timeout_seconds_max must exceed the minimum by at least a fifth")
        return self


class NetworkSettings(SettingGroup):
    """The addresses of a broker, and the limits of its connections."""

    why_fixed: ClassVar[str] = "sockets, timers and limits of connections are set up with it"

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
    register_seconds: float = Field(30.0, ge=1, le=60, description="interval of registrations at name servers")
    admin_networks: str = Field(
        "",
        description="networks that may change the group, in addition to this host, such as 10.0.0.0/8, comma separated",
    )
    connections_max: int = Field(20_000, ge=1, description="above this, the broker closes new connections at once")
    client_expiry_seconds: float = Field(120.0, gt=0, description="forget a client without a heartbeat for this time")
    idle_seconds_max: float = Field(120.0, gt=0, description="close an idle connection after this time")

    _is_address = validator(parse_address, "listen", "advertise")
    _are_addresses = validator(parse_address_list, "namesrv")
    _are_networks = validator(parse_networks, "admin_networks")
    _is_metrics_address = validator(parse_metrics_address, "metrics_listen")


class SecuritySettings(SettingGroup):
    """Accounts, certificates and the secret of the group."""

    why_fixed: ClassVar[str] = "files that it names are read again when they change"

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
    namesrv_credentials: Path | None = Field(
        None,
        description="TOML file with `access_key` and `secret_key`, mode 0600: signs registrations at name servers that "
        "have accounts; read again for each connection",
    )
    secret_file: Path | None = Field(
        None, description="the secret of the group, the same on all replicas; default: group.secret in `data_dir`"
    )

    @model_validator(mode="after")
    def _tls_has_its_files(self) -> Self:
        check_tls("tls_mode", self.tls_mode, self.tls_certificate, self.tls_key)
        check_tls("tls_replication", self.tls_replication, self.tls_certificate, self.tls_key)
        return self


class MemorySettings(SettingGroup):
    """The limits of the memory that clients may make a broker use."""

    why_fixed: ClassVar[str] = "what waits already was let in by it"

    compacted_keys_max: int = Field(
        10_000_000,
        ge=1000,
        le=2**31 - 1,
        description="keys of compacted topics, which the leader remembers; above: SYSTEM_BUSY for messages with a body",
    )
    uncommitted_bytes_max: int = Field(64 * MIB, ge=MIB, description="unacknowledged messages; above: SYSTEM_BUSY")
    forwarded_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="bytes of requests forwarded to the leader; above: SYSTEM_BUSY"
    )
    forwarded_requests_max: int = Field(10_000, ge=1, description="number of requests forwarded to the leader")
    forwarded_seconds_max: float = Field(
        2.5, gt=0, description="how long forwarded requests wait for a leader; RocketMQ clients wait 3 s"
    )
    long_polls_max: int = Field(100_000, ge=1, description="pulls that wait for messages; the same number of pops")
    long_poll_bytes_max: int = Field(128 * MIB, ge=MIB, description="memory of waiting pulls; above: answered at once")
    partial_request_bytes_max: int = Field(
        128 * MIB, ge=MIB, description="partly received requests of all clients; above, further ones wait unread"
    )
    partial_request_seconds_max: float = Field(
        30.0, ge=1, description="close a connection if no more bytes of its request arrive for this time"
    )
    unread_replies_bytes_max: int = Field(
        256 * MIB, ge=MIB, description="unread replies of all clients; above, those with the most are dropped"
    )
    client_unread_replies_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="unread replies of one client; above, it is dropped"
    )


class MessageSettings(SettingGroup):
    """Messages, delays and transactions."""

    why_fixed: ClassVar[str] = "messages that wait already were accepted by it"

    message_bytes_max: int = Field(
        4 * MIB,
        ge=1024,
        le=MESSAGE_BYTES_LIMIT,
        description="largest message body; a node that joins lowers the default to what fits `segment_bytes`",
    )
    default_topic_queues: int = Field(
        8, ge=1, le=1024, description="maximum number of queues of such a topic; clients usually ask for 4"
    )
    store_reply_message: bool = Field(True, description="store replies, in addition to pushing them")
    delay_levels: str = Field(
        format_levels(DELAY_LEVELS_MS), description="delays of levels 1, 2, ...; units s, m, h, d"
    )
    timer_delay_max_seconds: int = Field(
        40 * 86_400, ge=1, le=366 * 86_400, description="maximum delay of a timed message"
    )
    transactions: bool = Field(True, description="producers may send transactional messages")
    transaction_timeout_seconds: float = Field(
        6.0, gt=0, description="age of an open transaction at its first check-back"
    )
    transaction_check_seconds: float = Field(30.0, gt=0, description="time between check-backs")
    transaction_checks_max: int = Field(
        15, ge=1, le=CHECKS_MAX, description="check-backs without an outcome, after which a transaction is given up"
    )

    _is_level_table = validator(parse_levels, "delay_levels")


class ConsumeSettings(SettingGroup):
    """The settings of pulls, pops and consumer groups."""

    why_fixed: ClassVar[str] = "requests of consumers that wait already were let in by it"

    pull_bytes_max: int = Field(256 * 1024, ge=1024, description="bytes of messages per pull")
    slow_consumer_bytes: int | None = Field(
        None,
        ge=0,
        description="a consumer with this lag reads from a follower; default: 40 % of memory",
    )
    slow_pull_messages_max: int = Field(8, ge=1, description="messages per pull for such a consumer")
    slow_pull_bytes_max: int = Field(64 * 1024, ge=1024, description="bytes of messages per pull for such a consumer")
    priority_order_asc: bool = Field(True, description="a larger priority of a message is more urgent")
    lower_priorities_percent: int = Field(
        10,
        ge=0,
        le=50,
        description="share of popped messages for lower priorities under constant load of the highest one",
    )
    offset_commit_seconds: float = Field(0.2, gt=0, description="how long one-way offset commits are collected")


class BulkSettings(SettingGroup):
    """Bulk reads."""

    why_fixed: ClassVar[str] = "reads and leases that are open were let in by it"

    bulk_reads_max: int = Field(
        4, ge=1, le=64, description="concurrent bulk reads, each with up to 16 MiB of memory; 8 times as many wait"
    )
    bulk_bytes_max: int = Field(BULK_BYTES_MAX, ge=64 * 1024, le=BULK_BYTES_MAX, description="messages in one answer")
    log_leases_max: int = Field(
        1024, ge=1, description="log leases, with which readers keep segment files from retention"
    )
    log_lease_seconds_max: float = Field(600.0, gt=0, description="maximum duration of a log lease")


class StorageSettings(SettingGroup):
    """The directory of the files, how they are kept up to date, and when they are deleted."""

    why_fixed: ClassVar[str] = "files are laid out, and the disk is watched, by it"

    data_dir: Path = Field(Path("data"), description="directory of the log and of everything derived from it")
    checkpoint_seconds: float = Field(
        10.0,
        gt=0,
        description="interval of checkpoints, longer with over 100,000 queues; a start applies only the log after it",
    )
    key_index_poll_seconds: float = Field(1.0, gt=0, description="how often the index builder looks for work")
    retention_check_seconds: float = Field(10.0, gt=0, description="how often retention runs")
    disk_warn_ratio: float = Field(0.75, gt=0, le=1, description="disk use at which the broker warns")
    disk_expire_ratio: float = Field(
        0.80, gt=0, le=1, description="disk use at which files are deleted at any hour, and early as the last resort"
    )
    disk_full_ratio: float = Field(0.90, gt=0, le=1, description="disk use at which the broker refuses messages")

    @model_validator(mode="after")
    def _disk_ratios_ascend(self) -> Self:
        if not self.disk_warn_ratio <= self.disk_expire_ratio <= self.disk_full_ratio:
            raise ValueError("disk ratios must ascend: disk_warn_ratio <= disk_expire_ratio <= disk_full_ratio")
        return self


class ArchiveSettings(SettingGroup):
    """The place of the archive of the log, and how it is read and written."""

    why_fixed: ClassVar[str] = "an upload that is under way uses it"

    archive_url: str | None = Field(
        None,
        max_length=1024,
        description="archive complete segment files here, s3://BUCKET/PREFIX, the same on all replicas of a group and "
        "different for each group; default: no archive",
    )
    archive_endpoint_url: str | None = Field(
        None, description="address of the object storage with that bucket; default: AWS_ENDPOINT_URL, or Amazon S3"
    )
    archive_bytes_per_second: int = Field(
        50 * MIB, ge=0, description="limit of what is uploaded and read back; 0: no limit"
    )
    archive_cache_bytes: int = Field(
        1024 * MIB,
        ge=0,
        description="disk space in `data_dir` for what was read from the archive, while the disk has room; 0: none",
    )
    local_retention_hours: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        description="how long an archived segment file is kept on the disk after its newest message; its messages are "
        "read from `archive_url` then; default: `retention_hours` and `retention_bytes` decide",
    )
    local_retention_bytes: int | None = Field(
        None, ge=MIB, le=2**63 - 1, description="maximum size of the local log, as far as it is archived"
    )

    @field_validator("archive_url")
    @classmethod
    def _check_bucket_url(cls, value: str | None) -> str | None:
        if value is not None and why_no_bucket(value) is not None:
            raise ValueError(why_no_bucket(value))
        return value

    @field_validator("archive_endpoint_url")
    @classmethod
    def _check_no_secret(cls, value: str | None) -> str | None:
        if value is not None and has_secret(value):
            raise ValueError(SECRET_IN_URL)
        return value


class ChangeableSettings(SettingGroup):
    """The settings that an operator may change until the broker restarts; see `mq.broker.admin.broker_config`."""

    auto_create_topics: bool = Field(True, description="create a topic when the first message is sent to it")
    retention_hours: float = Field(
        72.0, gt=0, le=1_000_000, description="how long a segment file is kept after its newest message"
    )
    delete_when: int = Field(4, ge=-1, le=23, description="hour of the day for deleting expired files; -1: any")
    auto_create_groups: bool = Field(True, description="create a consumer group when it first consumes")
    sql_filter: bool = Field(True, description="allow SQL92 filters")
    pull_messages_max: int = Field(256, ge=1, le=65_536, description="messages per pull")
    bulk_bytes_per_second: int = Field(
        1024 * MIB,
        ge=MIB,
        le=2**63 - 1,
        description="throughput of bulk readers; above, they are told when to retry",
    )
    retention_bytes: int | None = Field(None, ge=MIB, le=2**63 - 1, description="maximum size of the log")
    archive_retention_hours: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        description="how long a file is kept in `archive_url` after its newest message; default: for ever",
    )
    archive_retention_bytes: int | None = Field(
        None, ge=MIB, le=2**63 - 1, description="maximum size of the archive; default: no limit"
    )
