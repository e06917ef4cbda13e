"""The table of options: the syntax, default and documentation of each."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS

Use = Literal["batch", "stream", "sink"]
QueueName = tuple[str, str, int]
"""Topic, broker name, queue id."""

TXN_VERSION_MAX: Final = (1 << 31) - 1

EARLIEST: Final = -2
LATEST: Final = -1

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message that was stored at this time or later, in epoch milliseconds."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """A queue offset for each queue. `EARLIEST` and `LATEST` mean the ends of the queue when the query is planned."""

    offsets: Mapping[QueueName, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message in each queue that was stored at its time or later, as `AtTime`."""

    times: Mapping[QueueName, int]


Bound = Literal["earliest", "latest"] | AtTime | AtOffsets | AtTimes
"""The place at which a scan begins or, exclusively, ends."""


class Option(NamedTuple):
    """One option: where it may be set, its default, and its documentation."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    uses: tuple[Use, ...]
    values: str
    meaning: str
    aliases: tuple[str, ...] = ()


# -- values --------------------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def _boolean(value: str) -> bool:
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise ValueError("must be true or false")


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be at least {low}" if number < low else f"must be at most {high}")
        return number

    return parse


def _duration_ms(low: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = _DURATION.fullmatch(value.strip())
        milliseconds = int(float(match[1]) * _DURATION_MS[match[2]]) if match else -1
        if match is None:
            try:
                milliseconds = int(value)
            except ValueError:
                raise ValueError('must be a number of milliseconds or a time such as "15m"') from None
        if milliseconds < low:
            raise ValueError(f"must be at least {low} ms")
        return milliseconds

    return parse


def _size(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError('must be a number of bytes or a size such as "4m"')
        nbytes = int(match[1]) * _SIZE_BYTES[match[2].lower()]
        if not low <= nbytes <= high:
            raise ValueError(f"must be {low} to {high} bytes")
        return nbytes

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        name = value.strip().lower()
        if name not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return name

    return parse


def _addresses(value: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in re.split(r"[;,]", value) if part.strip())
    if not addresses:
        raise ValueError("must not be empty")
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[2]) > 65535:
            raise ValueError(f"has {address!r}: expected HOST:PORT")
    return addresses


def _endpoint(value: str) -> str:
    url = urlsplit(value.strip())
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("must be a URL such as https://minio.example:9000")
    if url.username is not None or url.password is not None:
        raise ValueError("must not have credentials: use AWS_ACCESS_KEY_ID, or a profile")
    return value.strip()


def _names(value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise ValueError("must not be empty")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names {', '.join(twice)} twice")
    return names


def _columns(value: str) -> tuple[str, ...]:
    names = _names(value)
    check_columns(names)
    return names


def check_columns(names: Iterable[str]) -> None:
    """Raise ValueError for an unknown column, with the nearest one."""
    for name in names:
        if name not in COLUMN_NAMES:
            raise ValueError(f"names the unknown column {name!r}{nearest(name, COLUMN_NAMES)}")


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _queue_table(value: str, what: str, low: int) -> dict[QueueName, int]:
    table: dict[QueueName, int] = {}
    for topic, queues in _object(value).items():
        if not isinstance(queues, dict):
            raise ValueError(  # noqa: TRY004 - a wrong value of an option, whatever its type
                f'has no object of queues for topic {topic!r}, such as {{"broker-a:0": 23}}'
            )
        for queue, number in queues.items():
            if type(number) is not int or number < low:
                raise ValueError(f"has {json.dumps(number)} as the {what} of {topic} {queue}")
            table[_queue(topic, queue)] = number
    return table


def _offsets(value: str) -> Mapping[QueueName, int]:
    return _queue_table(value, "offset", EARLIEST)


def _times(value: str) -> Mapping[QueueName, int]:
    return _queue_table(value, "time", 0)


def _start_bound(value: str) -> Bound:
    if (word := value.strip().lower()) in ("earliest", "latest"):
        return "earliest" if word == "earliest" else "latest"
    return AtOffsets(_offsets(value))


def _end_bound(value: str) -> Bound:
    bound = _start_bound(value)
    if bound == "earliest":
        raise ValueError("cannot be earliest")
    if isinstance(bound, AtOffsets):
        for (topic, broker_name, queue_id), offset in bound.offsets.items():
            if offset == EARLIEST:
                raise ValueError(f"cannot be -2 (earliest), as for {topic} {broker_name}:{queue_id}")
    return bound


def _parse_queues(value: str) -> frozenset[QueueName]:
    queue_names: set[QueueName] = set()
    for topic, queues in _object(value).items():
        if not isinstance(queues, list) or not queues:
            raise ValueError(f'has no list of queues for topic {topic!r}, such as ["broker-a:0"]')
        queue_names.update(_queue(topic, queue) for queue in queues)
    return frozenset(queue_names)


def _object(value: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError("is not a JSON object with a topic")
    return document


def _queue(topic: str, text: object) -> QueueName:
    broker_name, separator, number = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not separator or not broker_name or not number.isascii() or not number.isdigit():
        raise ValueError(f'has {json.dumps(text)} as a queue of {topic}; one is written as "broker-a:0"')
    return topic, broker_name, int(number)


# -- the table -----------------------------------------------------------------------------------------------------

_READ: Final[tuple[Use, ...]] = ("batch", "stream")
_ALL: Final[tuple[Use, ...]] = ("batch", "stream", "sink")
_MIB: Final = 1 << 20

OPTIONS: Final = (
    Option(
        "namesrv",
        _addresses,
        None,
        _ALL,
        "HOST:PORT,...",
        "The name servers. Required.",
        ("bootstrap.servers", "nameserver"),
    ),
    Option("subscribe", _names, None, _READ, "topic,...", "The topics to read."),
    Option(
        "subscribePattern",
        _pattern,
        None,
        _READ,
        "regular expression",
        "All topics whose whole name matches. Retry, dead letter and system topics are read by name only.",
    ),
    Option(
        "assign",
        _parse_queues,
        None,
        _READ,
        '{"Orders": ["broker-a:0"]}',
        "These queues only. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
    ),
    Option(
        "startingOffsets",
        _start_bound,
        None,
        _READ,
        'earliest, latest, {"Orders": {"broker-a:0": 23}}',
        "Where to start; -2 is the first and -1 the next offset of a queue. A stream with a checkpoint continues from "
        "it. By default a batch starts at the earliest message, a stream at the latest.",
    ),
    Option(
        "endingOffsets",
        _end_bound,
        None,
        ("batch",),
        'latest, {"Orders": {"broker-a:0": 50}}',
        "Where to end, exclusively; -1 is the end at planning, the default.",
    ),
    Option(
        "startingTimestamp",
        _integer(0),
        None,
        _READ,
        "epoch ms",
        "Start at the first message stored at or after this time.",
    ),
    Option(
        "endingTimestamp",
        _integer(0),
        None,
        ("batch",),
        "epoch ms",
        "End before the first message stored at or after this time.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        _times,
        None,
        _READ,
        '{"Orders": {"broker-a:0": 1700000000000}}',
        "As `startingTimestamp`, for each queue.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        _times,
        None,
        ("batch",),
        '{"Orders": {"broker-a:0": 1700000000000}}',
        "As `endingTimestamp`, for each queue.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        _one_of("error", "latest"),
        "error",
        _READ,
        "error, latest",
        "What to do if a queue has no message stored at or after the starting time.",
    ),
    Option(
        "failOnDataLoss",
        _boolean,
        True,
        _READ,
        "true, false",
        "Fail if messages of the range are lost; with false the query continues after them and logs their number.",
    ),
    Option(
        "columns",
        _columns,
        DEFAULT_COLUMNS,
        _READ,
        "name,...",
        "The columns to read; without `body` brokers send no bodies. A schema given to the reader does the same.",
    ),
    Option(
        "tags",
        _text,
        "*",
        _READ,
        "TagA || TagB",
        "Only messages with one of these tags.",
        ("subexpression",),
    ),
    Option(
        "readFrom",
        _one_of("follower", "follower-only", "any", "leader"),
        "follower",
        _READ,
        "follower, follower-only, any, leader",
        "Which replicas to read from. `follower` reads from the leader only if every follower has failed.",
    ),
    Option(
        "onBadBody",
        _one_of("fail", "keep"),
        "fail",
        _READ,
        "fail, keep",
        "What to do if a compressed body cannot be decompressed; `keep` returns it as stored.",
    ),
    Option(
        "readMode",
        _one_of("bulk", "archive", "pull"),
        "bulk",
        _READ,
        "bulk, archive, pull",
        "`bulk` reads all queues of a partition at once, in the order of the log. `archive` does so, too, but tasks "
        "read what is archived from object storage; brokers send only the rest. `pull` uses only requests of RocketMQ "
        "clients, for Apache RocketMQ.",
    ),
    Option(
        "archiveEndpointUrl",
        _endpoint,
        None,
        _READ,
        "URL",
        "The object storage as the driver and tasks reach it. Default: `archive_endpoint_url` of the brokers. Only for "
        "`readMode=archive`.",
    ),
    Option(
        "onArchiveFailure",
        _one_of("fail", "brokers"),
        "fail",
        _READ,
        "fail, brokers",
        "What to do if the archive cannot be read: fail with the object and the offset, or read from brokers. Only for "
        "`readMode=archive`.",
    ),
    Option(
        "readConsistency",
        _one_of("latest", "committed"),
        None,
        _READ,
        "latest, committed",
        "Where a scan ends: `latest` is after all messages acknowledged before it began; `committed` is what followers "
        "know to be committed, which lags slightly and needs no leader. Default: `committed` for a stream; `latest` "
        "for a batch, or `committed` if there is no leader. Not for `pull`.",
    ),
    Option("minPartitions", _integer(1), None, _READ, "number", "Approximate minimum number of partitions."),
    Option("maxRecordsPerPartition", _integer(1), None, _READ, "number", "Split partitions with more messages."),
    Option(
        "maxBytesPerPartition",
        _size(64 << 10, 2**63 - 1),
        128 * _MIB,
        _READ,
        "size",
        "Split partitions with more bytes, approximately, if brokers can report sizes. Default 128m.",
    ),
    Option(
        "pushFilters",
        _boolean,
        False,
        ("batch",),
        "true, false",
        "Read only rows that match conditions on `topic`, `broker_name`, `queue_id` and `queue_offset`. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`.",
    ),
    Option(
        "maxOffsetsPerTrigger", _integer(1), None, ("stream",), "number", "Maximum number of messages per micro-batch."
    ),
    Option(
        "maxBytesPerTrigger",
        _size(1, 2**63 - 1),
        None,
        ("stream",),
        "size",
        "Approximate maximum of bytes per micro-batch, from the average message size of a queue.",
    ),
    Option(
        "minOffsetsPerTrigger",
        _integer(1),
        None,
        ("stream",),
        "number",
        "Minimum number of messages before a micro-batch starts, unless `maxTriggerDelay` has passed.",
    ),
    Option(
        "maxTriggerDelay", _duration_ms(0), 900_000, ("stream",), "time", "See `minOffsetsPerTrigger`. Default 15m."
    ),
    Option(
        "fetchBytes",
        _size(64 << 10, 8 * _MIB),
        4 * _MIB,
        _READ,
        "size",
        "Maximum bytes in one answer of a broker. Default 4m.",
    ),
    Option(
        "fetchTimeout",
        _duration_ms(1),
        10_000,
        _READ,
        "time",
        "Timeout of a request, then another replica is asked. Default 10s.",
    ),
    Option(
        "readDeadline",
        _duration_ms(1),
        120_000,
        _READ,
        "time",
        "A task fails if no replica has sent anything for this time. Default 2m.",
    ),
    Option(
        "commitToGroup",
        _text,
        None,
        ("stream",),
        "consumer group",
        "Write the offsets of each finished micro-batch to this consumer group, so that consoles show the lag of the "
        "query. They are never read back.",
    ),
    Option(
        "clientId", _text, "spark", _ALL, "text", "The name of this query in the metrics of brokers.", ("client.id",)
    ),
    Option("topic", _text, None, _ALL, "topic", "Sink: the topic to write to, unless there is a column `topic`."),
    Option(
        "compression",
        _one_of("none", "zlib", "lz4", "zstd"),
        "none",
        ("sink",),
        "none, zlib, lz4, zstd",
        "Compression of bodies, if the bodies of one request have 4 KiB or more on average.",
    ),
    Option(
        "txnAppId",
        _text,
        None,
        ("sink",),
        "text",
        "With `txnVersion`: identifies this write of a batch job, so that a second run stores no row twice. "
        "Streams have their own ids.",
    ),
    Option(
        "txnVersion",
        _integer(0, TXN_VERSION_MAX),
        None,
        ("sink",),
        "number",
        "See `txnAppId`; must grow with each new write. At most 2147483647.",
    ),
    Option(
        "maxInFlightBytes",
        _size(64 << 10, 1 << 30),
        4 * _MIB,
        ("sink",),
        "size",
        "Maximum unacknowledged bytes of a task. Default 4m.",
    ),
    Option(
        "writeDeadline",
        _duration_ms(1),
        120_000,
        ("sink",),
        "time",
        "A task fails if it has waiting rows and none was stored for this time. Default 2m.",
    ),
)


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a hint at the choice most similar to ``name``, to append to an error; empty if none is similar."""
    names = {other.lower(): other for other in choices}
    matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {names[matches[0]]!r}?" if matches else ""


# -- documentation -------------------------------------------------------------------------------------------------


def markdown_table() -> Iterator[str]:
    """Yield the lines of the option table in the documentation."""
    yield "| option | values | for | meaning |"
    yield "|---|---|---|---|"
    for option in OPTIONS:
        aliases = "".join(f"<br>also `{alias}`" for alias in option.aliases)
        default = f" Default `{str(option.default).lower()}`." if isinstance(option.default, bool | str) else ""
        values = option.values.replace("|", "\\|")
        yield f"| `{option.name}`{aliases} | {values} | {', '.join(option.uses)} | {option.meaning}{default} |"


TABLE_BEGIN: Final = "<!-- options: written by python -m spark.option_table -->"
TABLE_END: Final = "<!-- end of options -->"


def with_table(document: str) -> str:
    """Insert the option table between the two marks of a document. Raises ValueError if they are missing."""
    before, _, rest = document.partition(TABLE_BEGIN)
    _, mark, after = rest.partition(TABLE_END)
    if not mark:
        raise ValueError(f"the document has no {TABLE_BEGIN} and {TABLE_END}")
    table = "\n".join(markdown_table())
    return f"{before}{TABLE_BEGIN}\n{table}\n{mark}{after}"


if __name__ == "__main__":
    guide = Path("docs/spark.md")
    guide.write_text(with_table(guide.read_text()))
