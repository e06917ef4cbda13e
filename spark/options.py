"""Parses the options of a read or a write from Spark's arguments.

Options are strings with names in lower case. Everything that can be checked without a broker is refused here, by the
name that the user wrote; `spark.option_table` defines the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from spark.option_table import OPTIONS, AtTime, AtTimes, Bound, QueueName, Use, nearest

_SPARKS_OWN: Final = frozenset({"path", "paths", "schema", "numpartitions", "checkpointlocation", "queryname"})
_BY_NAME: Final = {spelling.lower(): option for option in OPTIONS for spelling in (option.name, *option.aliases)}

_ACCOUNT_IN_URL: Final = re.compile(r"//[^/\s]+@")


class OptionInvalid(ValueError):
    """An option has an unknown name or an invalid value, or contradicts another one."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Subscribes to topics by name, with all their queues."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Subscribes to all topics whose whole name matches the regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Queues:
    """Subscribes to some queues of topics."""

    queues: frozenset[QueueName]


Subscription = Topics | Pattern | Queues


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a reader. Times are milliseconds, sizes bytes; None means no limit."""

    namesrv: tuple[str, ...]
    subscription: Subscription
    start: Bound
    end: Bound
    no_message_at_time: Literal["error", "latest"]
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    tags: str
    read_from: Literal["follower", "follower-only", "any", "leader"]
    on_bad_body: Literal["fail", "keep"]
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    push_filters: bool
    read_mode: Literal["bulk", "archive", "pull"]
    archive_endpoint_url: str | None
    on_archive_failure: Literal["fail", "brokers"]
    read_consistency: Literal["latest", "committed"] | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fetch_bytes: int
    fetch_timeout_ms: int
    read_deadline_ms: int
    client_id: str
    commit_to_group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of the sink."""

    namesrv: tuple[str, ...]
    topic: str | None
    compression: Literal["none", "zlib", "lz4", "zstd"]
    txn_app_id: str | None
    txn_version: int | None
    max_in_flight_bytes: int
    write_deadline_ms: int
    client_id: str


@dataclass(slots=True)
class _UserOptions:
    """The options that a user set, by their own names, parsed; ``names`` has the user's spelling of each."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, _BY_NAME[name.lower()].default)

    def only_one(self, *names: str) -> str | None:
        """The one of the named options that is set, None if none is. Raises OptionInvalid if several are."""
        names_set = [name for name in names if name in self.values]
        if len(names_set) > 1:
            raise OptionInvalid(f"options {' and '.join(self.names[name] for name in names_set)} exclude each other")
        return names_set[0] if names_set else None


def parse_read_options(options: Mapping[str, str], use: Literal["batch", "stream"]) -> ReadOptions:
    """Parse the options of a batch or streaming read.

    Raises:
        OptionInvalid: an unknown option (with the nearest known one), an invalid value, one that is only
            for other uses, a missing one, or two that contradict each other.
    """
    user = _parse(options, use)
    if user["readMode"] == "pull" and "readConsistency" in user.values:
        raise OptionInvalid(f"option {user.names['readConsistency']} needs readMode=bulk or archive")
    for name in ("archiveEndpointUrl", "onArchiveFailure"):
        if name in user.values and user["readMode"] != "archive":
            raise OptionInvalid(f"option {user.names[name]} needs readMode=archive")
    is_batch = use == "batch"
    return ReadOptions(
        namesrv=_require(user, "namesrv"),
        subscription=_subscription(user),
        start=_parse_bound(user, "starting", "earliest" if is_batch else "latest"),
        end=_parse_bound(user, "ending", "latest"),
        no_message_at_time=user["startingOffsetsByTimestampStrategy"],
        **_same_name(user, ReadOptions),
    )


def columns_in(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that the options of any read request. Raises OptionInvalid for a wrong value."""
    for spelling, value in options.items():
        option = _BY_NAME.get(spelling.lower())
        if option is not None and option.name == "columns":
            try:
                columns: tuple[str, ...] = option.parse(value)
            except ValueError as error:
                raise OptionInvalid(f"option {option.name} {error}; it is {_format(value)}") from None
            return columns
    default: tuple[str, ...] = _BY_NAME["columns"].default
    return default


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of the sink. Raises OptionInvalid as `parse_read_options` does."""
    user = _parse(options, "sink")
    if (user["txnAppId"] is None) != (user["txnVersion"] is None):
        raise OptionInvalid("options txnAppId and txnVersion are needed together")
    return WriteOptions(namesrv=_require(user, "namesrv"), **_same_name(user, WriteOptions))


def _parse(options: Mapping[str, str], use: Use) -> _UserOptions:
    user = _UserOptions()
    for spelling, value in options.items():
        option = _BY_NAME.get(spelling.lower())
        if option is None:
            if spelling.lower() in _SPARKS_OWN:
                continue
            option_names = [other.name for other in OPTIONS if use in other.uses]
            raise OptionInvalid(f"there is no option {spelling!r}{nearest(spelling, option_names)}")
        if use not in option.uses:
            uses = " and ".join(option.uses)
            raise OptionInvalid(f"option {option.name} is for {uses}, not for {use}")
        if option.name in user.values:
            raise OptionInvalid(f"options {user.names[option.name]} and {spelling} are the same option")
        try:
            user.values[option.name] = option.parse(value)
        except ValueError as error:
            raise OptionInvalid(f"option {option.name} {error}; it is {_format(value)}") from None
        # Spark passes names in lower case: errors show them as in the documentation.
        user.names[option.name] = option.name if spelling.lower() == option.name.lower() else spelling
    return user


def _same_name(user: _UserOptions, kind: type[ReadOptions | WriteOptions]) -> dict[str, Any]:
    """Optional values, for the fields that have the name of their option; fields of times end with `_ms`."""
    values: dict[str, Any] = {}
    for each in fields(kind):
        first, *others = each.name.removesuffix("_ms").split("_")
        name = first + "".join(map(str.capitalize, others))
        if name.lower() in _BY_NAME and name != "namesrv":
            values[each.name] = user[name]
    return values


def _require(user: _UserOptions, name: str) -> Any:
    if name not in user.values:
        raise OptionInvalid(f"option {name} is missing")
    return user[name]


def _subscription(user: _UserOptions) -> Subscription:
    match user.only_one("subscribe", "subscribePattern", "assign", "topic"):
        case "subscribe":
            return Topics(user["subscribe"])
        case "topic":
            return Topics((user["topic"],))
        case "subscribePattern":
            return Pattern(user["subscribePattern"])
        case "assign":
            return Queues(user["assign"])
        case _:
            raise OptionInvalid("one of the options subscribe, subscribePattern and assign is needed")


def _parse_bound(
    user: _UserOptions, side: Literal["starting", "ending"], default: Literal["earliest", "latest"]
) -> Bound:
    name = user.only_one(f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    if name is None:
        return default
    if name.endswith("ByTimestamp"):
        return AtTimes(user[name])
    if name.endswith("Timestamp"):
        return AtTime(user[name])
    bound: Bound = user[name]
    return bound


def _format(value: str) -> str:
    value = _ACCOUNT_IN_URL.sub("//...@", value)
    return repr(value) if len(value) <= 200 else f"{value[:200]!r}..."
