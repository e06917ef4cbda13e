"""Parses the YAML file of a pipeline, and checks it as far as possible without brokers and Spark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from mq.protocol.names import NameRefused, check_topic
from spark.access import CREDENTIALS, TLS, TLS_CA, TLS_CERTIFICATE, TLS_KEY
from spark.option_table import nearest
from spark.options import OptionInvalid, parse_read_options
from spark.schema import COLUMN_TYPES
from spark.tables.column_types import ColumnType, Primitive, Struct, parse_schema
from spark.tables.documents import (
    DocumentInvalid,
    SecretInvalid,
    Section,
    Value,
    format_list,
    load,
    names,
    number,
    one_of,
    text,
    texts,
)
from spark.tables.schema_files import Bodies, avro_bodies, protobuf_bodies
from spark.tables.setting_values import packages, spark_settings, start, without_password

Format = Literal["parquet", "delta", "iceberg"]
DecodeFormat = Literal["raw", "text", "json", "csv", "avro", "protobuf"]
NewFields = Literal["add", "ignore", "dead-letter"]
Unit = Literal["hour", "day", "month"]
UNITS: Final = ("hour", "day", "month")

POSITION_COLUMNS: Final = ("broker_name", "queue_id", "queue_offset")
"""Identify a message in its topic; every table has them, with the prefix."""
DEFAULT_METADATA: Final = (*POSITION_COLUMNS, "store_timestamp")
PREFIX: Final = "_"
"""Before the names of columns that are not from the body."""
MESSAGES_PER_COMMIT: Final = 1_000_000
STOP_ABOVE_PERCENT: Final = 50
_MESSAGES_MAX: Final = 100_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE: Final = "must be 1 to 64 letters, digits, '.', '_' and '-'"
_EVERY: Final = re.compile(r"every\s+(\d+)\s*(s|second|seconds|m|minute|minutes|h|hour|hours)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_EVERY_SECONDS_MAX: Final = 7 * 86_400
S3: Final = "s3://"
_BUCKET: Final = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}/[^/].*")
_SECRET_IN_URL: Final = re.compile(r"//[^/@\s]+@")
_TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){1,4}")
_OWN_OPTIONS: Final = frozenset({
    "namesrv", "bootstrap.servers", "nameserver", "topic", "subscribe", "subscribepattern", "assign", "columns",
    "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "failondataloss", "tags", "subexpression",
    "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "pushfilters", "onbadbody",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trigger:
    """The times of commits: once at the start with all messages, or every ``every_seconds`` (0: on arrival)."""

    every_seconds: float | None

    @property
    def is_once(self) -> bool:
        """Whether the pipeline ends when it has read all messages that were stored before its start."""
        return self.every_seconds is None


@dataclass(frozen=True, slots=True)
class Table:
    """The table to write. ``location`` is a directory or URL, ``name`` a name in a catalog; one of them is set."""

    format: Format
    location: str | None
    name: str | None
    partition_column: str | None = None
    partition_unit: Unit = "day"
    properties: Mapping[str, str] = field(default_factory=dict)
    endpoint_url: str | None = None

    @property
    def is_in_bucket(self) -> bool:
        """Whether the table is Parquet objects in S3 storage, and not files in a directory."""
        return self.format == "parquet" and (self.location or "").startswith(S3)

    @property
    def where(self) -> str:
        """Return the place of the table, for people."""
        return self.name or self.location or ""


@dataclass(frozen=True, slots=True)
class Decode:
    """Defines how bodies become columns. If ``schema`` is None, it is inferred from the first messages, then kept.

    ``bodies`` has the content of the schema files of Avro and Protobuf.
    """

    format: DecodeFormat
    schema: Mapping[str, ColumnType] | None = None
    new_fields: NewFields = "ignore"
    separator: str = ","
    bodies: Bodies | None = None

    @property
    def columns(self) -> dict[str, ColumnType]:
        """Return the columns of bodies that are known without reading a message."""
        if self.format in ("raw", "text"):
            return {"body": Primitive("binary" if self.format == "raw" else "string")}
        return dict(self.schema or {})


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The topic for messages that do not decode, and the share of them above which the pipeline stops."""

    topic: str
    stop_above_percent: int


@dataclass(frozen=True, slots=True)
class Upsert:
    """Makes a table with one row for each key.

    ``order`` is the column by which the latest change is known; None: the offset, for keys that stay in one queue.
    """

    key: tuple[str, ...]
    envelope: Literal["none", "debezium"]
    order: str | None
    delete_column: str | None
    delete_value: str | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline, as its file defines it."""

    file: Path
    name: str
    namesrv: str
    topic: str
    start: str | int
    trigger: Trigger
    messages_per_commit: int
    table: Table
    decode: Decode
    metadata: tuple[str, ...]
    dead_letters: DeadLetters | None
    upsert: Upsert | None
    read: Mapping[str, str]
    spark: Mapping[str, str]
    packages: tuple[str, ...]
    state: Path
    metrics_port: int | None
    account: Mapping[str, str] = field(default_factory=dict)
    """Variables of `spark.access`, with paths."""

    @property
    def metadata_columns(self) -> dict[str, str]:
        """Return the names that the metadata columns have in the table, by their names in the source."""
        return {name: PREFIX + name for name in self.metadata}

    def read_options(self) -> dict[str, str]:
        """Return the options of the data source that are the same for each commit."""
        return {"namesrv": self.namesrv, "clientId": f"table-{self.name}", **self.read}


def read_pipeline(path: Path) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        DocumentInvalid: it cannot be read, or is not a pipeline; tells the line, and the allowed values.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentInvalid(f"{path} cannot be read: {error}") from error
    return parse_pipeline(content, path)


def parse_pipeline(content: str, path: Path) -> Pipeline:
    """Parse the text of a pipeline's file. Paths of schema files are relative to ``path``. Raises DocumentInvalid."""
    document = Section(load(content, str(path)))
    if not document.has("name") and not _NAME.fullmatch(path.stem):
        raise document.error(f"name is missing, and the name of the file cannot replace it: it {_NAME_RULE}")
    name = document.member("name", _name, path.stem)
    namesrv = document.member("namesrv", _namesrv)
    topic = document.member("topic", _topic)
    trigger = document.member("trigger", _trigger, Trigger(None))
    begins = document.member("start", start, "earliest")
    per_commit = document.member("max_messages_per_commit", number(1, _MESSAGES_MAX), MESSAGES_PER_COMMIT)
    decode = _decode(document.section("decode"), path.parent)
    metadata = document.member("metadata", _metadata, DEFAULT_METADATA)
    dead_letters = _dead_letters(document.section("dead_letters"), topic)
    table_section = document.section("table")
    if table_section is None:
        raise document.error("table is missing")
    table = _table(table_section, path.parent)
    upsert_value = document.value("upsert")
    upsert = None
    if upsert_value is not None:
        decode = _rows_of_changes(upsert_value, decode)
        upsert = _upsert(upsert_value, table, decode)
    read = _read(document.value("read"), namesrv, topic)
    account = _account(document.section("account"), path.parent)
    settings = document.member("spark", spark_settings, {})
    maven = document.member("packages", packages, ())
    state_default = (
        Path(table.location) / "_raftmq"
        if table.format == "parquet" and table.location and not table.is_in_bucket
        else path.parent / f"{path.stem}.state"
    )
    if document.has("state") and table.format == "parquet" and not table.is_in_bucket:
        value = document.value("state")
        assert value is not None
        raise value.error("is not for Parquet: its commits are kept in the directory of the table")
    state = document.member("state", lambda each: _local(text(each), path.parent), state_default)
    metrics_port = document.member("metrics_port", number(1, 65_535), None)
    document.finish()
    return Pipeline(
        file=path,
        name=name,
        namesrv=namesrv,
        topic=topic,
        start=begins,
        trigger=trigger,
        messages_per_commit=per_commit,
        table=table,
        decode=decode,
        metadata=metadata,
        dead_letters=dead_letters,
        upsert=upsert,
        read=read,
        spark=settings,
        packages=maven,
        state=state,
        metrics_port=metrics_port,
        account=account,
    )


# -- parts -------------------------------------------------------------------------------------------------------------


def _table(section: Section, beside: Path) -> Table:
    kind = section.member("format", one_of("parquet", "delta", "iceberg"))
    location: str | None = None
    name: str | None = None
    if kind == "iceberg":
        name = section.member("name", _table_name)
        if (value := section.value("location")) is not None:
            raise value.error("is not for Iceberg: the catalog knows where the table is; set table.name")
    else:
        location = section.member("location", without_password)
        if (value := section.value("name")) is not None:
            raise value.error(f"is not for {kind}: set table.location")
        value = section.value("location")
        assert value is not None
        if kind == "parquet":
            location = _parquet_location(location, value, beside)
        elif not urlsplit(location).scheme:
            location = str(_local(location, beside))
    column, unit = None, "day"
    if (partition := section.section("partition_by")) is not None:
        column = partition.member("column", text)
        unit = partition.member("unit", one_of(*UNITS), "day")
        partition.finish()
    properties = section.member("properties", texts, {})
    endpoint_url = section.member("endpoint_url", _endpoint_url, None)
    table = Table(cast("Format", kind), location, name, column, cast("Unit", unit), properties, endpoint_url)
    if (value := section.value("endpoint_url")) is not None and not table.is_in_bucket:
        raise value.error("is for Parquet in S3 storage; for Delta and Iceberg it is a setting of Spark")
    section.finish()
    return table


def _parquet_location(location: str, value: Value, beside: Path) -> str:
    scheme = urlsplit(location).scheme
    if scheme == "s3":
        if _SECRET_IN_URL.search(location):
            raise value.error("must not have credentials: use AWS_ACCESS_KEY_ID, or a profile")
        if not _BUCKET.fullmatch(location):
            raise value.error(f"must be s3://BUCKET/PREFIX; it is {location!r}")
        return location.rstrip("/")
    if scheme in ("s3a", "s3n"):
        raise value.error(f"must begin with s3://; it is {location!r}")
    if scheme not in ("", "file"):
        raise value.error(
            "must be a directory that the driver and all executors see, or s3://BUCKET/PREFIX: only there can a commit "
            f"be made by one process alone. For other storage use format delta or iceberg; it is {location!r}"
        )
    return str(_local(location, beside))


def _endpoint_url(value: Any) -> str:
    url = without_password(value)
    try:
        parse_read_options(
            {"namesrv": "n:1", "subscribe": "T", "readMode": "archive", "archiveEndpointUrl": url}, "batch"
        )
    except OptionInvalid as error:
        raise ValueError(str(error).removeprefix("option archiveEndpointUrl ").partition("; it is ")[0]) from None
    return url


def _decode(section: Section | None, beside: Path) -> Decode:
    if section is None:
        return Decode("raw")
    kind = section.member("format", one_of("raw", "text", "json", "csv", "avro", "protobuf"))
    schema: dict[str, ColumnType] | None = None
    new_fields, separator = "ignore", ","
    bodies: Bodies | None = None
    if kind == "json":
        schema = section.member("schema", _schema_or_inferred)
        new_fields = section.member(
            "new_fields", one_of("add", "ignore", "dead-letter"), "add" if schema is None else "ignore"
        )
    elif kind == "csv":
        schema = section.member("schema", _schema)
        separator = section.member("separator", _separator, ",")
    elif kind in ("avro", "protobuf"):
        if (value := section.value("schema")) is not None:
            raise value.error(f"is not for {kind}: set schema_file")
        bodies, schema = avro_bodies(section, beside) if kind == "avro" else protobuf_bodies(section, beside)
        try:
            _check_own_columns(schema)
        except ValueError as error:
            raise section.error(str(error)) from None
    section.finish()
    return Decode(cast("DecodeFormat", kind), schema, cast("NewFields", new_fields), separator, bodies)


def _rows_of_changes(value: Value, decode: Decode) -> Decode:
    """Add the columns of the rows, for changes as Debezium writes them in Avro or Protobuf."""
    if decode.bodies is None or Section(value).member("envelope", text, "none") != "debezium":
        return decode
    columns = decode.schema or {}
    row = columns.get("after")
    if columns.get("op") != Primitive("string") or not isinstance(row, Struct) or columns.get("before") != row:
        raise value.error(
            f"needs a schema file with op, a string, and before and after, the same record: that is how Debezium "
            f"writes a change; it has {format_list(columns)}"
        )
    return replace(decode, schema=dict(row.fields))


def _dead_letters(section: Section | None, topic: str) -> DeadLetters | None:
    if section is None:
        return None
    target = section.member("topic", _topic)
    if target == topic:
        value = section.value("topic")
        assert value is not None
        raise value.error("is the topic that is read: its dead letters would be read again, for ever")
    percent = section.member("stop_above_percent", number(0, 100), STOP_ABOVE_PERCENT)
    section.finish()
    return DeadLetters(target, percent)


def _upsert(value: Value, table: Table, decode: Decode) -> Upsert:
    if table.format == "parquet":
        raise value.error("needs table.format delta or iceberg: rows in a directory of Parquet files cannot change")
    if decode.format in ("raw", "text"):
        raise value.error(f"needs columns for its key: decode.format is {decode.format}")
    section = Section(value)
    key = section.member("key", names)
    if decode.schema is not None and (unknown := [each for each in key if each not in decode.schema]):
        hint = nearest(unknown[0], decode.schema)
        raise section.error(f"key names {format_list(unknown)}, which decode.schema does not have{hint}")
    envelope = section.member("envelope", one_of("none", "debezium"), "none")
    if envelope == "debezium" and (decode.format == "csv" or decode.schema is None):
        raise section.error(
            "envelope debezium needs decode.format json, avro or protobuf, and for json in decode.schema the columns "
            "of a row"
        )
    if envelope == "debezium" and decode.new_fields != "ignore":
        raise section.error("envelope debezium needs decode.new_fields ignore: a change has other fields")
    order: str | None = section.member("order", text, None)
    for each in (*key, *(() if order is None else (order,))):
        if "map<" in str((decode.schema or {}).get(each)):
            raise section.error(f"names the column {each}, which is a map: maps cannot be compared")
    if order is not None and decode.schema is not None and order not in decode.schema:
        raise section.error(f"order is {order}; decode.schema has no such column{nearest(order, decode.schema)}")
    delete = section.section("delete_when")
    column = delete_value = None
    if delete is not None:
        if envelope == "debezium":
            raise delete.error("is not for envelope debezium: its op says what is deleted")
        column = delete.member("column", text)
        delete_value = delete.member("value", _scalar)
        delete.finish()
        if decode.schema is not None and column not in decode.schema:
            hint = nearest(column, decode.schema)
            raise delete.error(f"column is {column}; decode.schema has no such column{hint}")
    section.finish()
    return Upsert(key, cast("Literal['none', 'debezium']", envelope), order, column, delete_value)


def _account(section: Section | None, beside: Path) -> dict[str, str]:
    if section is None:
        return {}
    for name in ("access_key", "secret_key"):
        if (value := section.value(name)) is not None:
            raise value.error("does not belong into this file: write both keys into one that only you may read, and "
                                "name it as account.credentials")  # fmt: skip
    files = {"credentials": CREDENTIALS, "tls_ca": TLS_CA, "tls_certificate": TLS_CERTIFICATE, "tls_key": TLS_KEY}
    variables = {
        variable: str(_local(section.member(name, text), beside))
        for name, variable in files.items()
        if section.has(name)
    }
    uses_tls = section.member("tls", _boolean, any(name in variables for name in (TLS_CA, TLS_CERTIFICATE, TLS_KEY)))
    section.finish()
    return {**variables, **({TLS: "on"} if uses_tls else {})}


def _read(value: Value | None, namesrv: str, topic: str) -> dict[str, str]:
    if value is None:
        return {}
    section = Section(value)
    options: dict[str, str] = {}
    for name, each in (value.members or {}).items():
        if name.lower() in _OWN_OPTIONS:
            raise each.error("is set by the pipeline itself")
        options[name] = section.member(name, _scalar)
        try:
            parse_read_options({"namesrv": namesrv, "subscribe": topic, name: options[name]}, "batch")
        except OptionInvalid as error:
            if "needs readMode" not in str(error):
                raise each.error(f"is refused: {error}") from None
    try:
        parse_read_options({"namesrv": namesrv, "subscribe": topic, **options}, "batch")
    except OptionInvalid as error:
        raise section.error(f"is refused: {error}") from None
    return options


# -- values ------------------------------------------------------------------------------------------------------------


def _name(value: Any) -> str:
    name = text(value)
    if not _NAME.fullmatch(name):
        raise ValueError(_NAME_RULE)
    return name


def _topic(value: Any) -> str:
    topic = text(value)
    try:
        check_topic(topic)
    except NameRefused as error:
        raise ValueError(error.reason.removeprefix(f"the topic name {topic!r} ")) from None
    return topic


def _namesrv(value: Any) -> str:
    address = text(value)
    if "@" in address:
        raise SecretInvalid("must be HOST:PORT,... without an account: that is set as account.credentials")
    try:
        parse_read_options({"namesrv": address, "subscribe": "T"}, "batch")
    except OptionInvalid as error:
        raise ValueError(str(error).removeprefix("option namesrv ").partition("; it is ")[0]) from None
    return address


def _trigger(value: Any) -> Trigger:
    if value == "once":
        return Trigger(None)
    if value == "continuous":
        return Trigger(0)
    match = _EVERY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be once, continuous, or such as "every 10 minutes"')
    seconds = int(match[1]) * _SECONDS[match[2][0]]
    if not 1 <= seconds <= _EVERY_SECONDS_MAX:
        raise ValueError(f"must be every 1 to {_EVERY_SECONDS_MAX} seconds")
    return Trigger(seconds)


def _metadata(value: Any) -> tuple[str, ...]:
    names_chosen = () if value == [] else names(value)
    for each in names_chosen:
        if each == "body" or each not in COLUMN_TYPES:
            columns = [name for name in COLUMN_TYPES if name != "body"]
            raise ValueError(f"names {each!r}; there are {', '.join(columns)}{nearest(each, columns)}")
    return tuple(name for name in COLUMN_TYPES if name in {*names_chosen, *POSITION_COLUMNS})


def _schema(value: Any) -> dict[str, ColumnType]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a mapping of columns to types, such as {id: bigint, note: string}")
    for name, kind in value.items():
        if not isinstance(kind, str):
            hint = ': write a type with a comma in "..."' if ")" in name else ""
            raise ValueError(f"column {name} has no type such as bigint{hint}")  # noqa: TRY004 - a wrong value
    _check_own_columns(value)
    return parse_schema(value)


def _check_own_columns(names_of: Iterable[str]) -> None:
    for name in names_of:
        if name.startswith(PREFIX) and name[len(PREFIX) :] in COLUMN_TYPES:
            raise ValueError(f"column {name} is the name of a column that the pipeline adds: choose another one")


def _schema_or_inferred(value: Any) -> dict[str, ColumnType] | None:
    if isinstance(value, str):
        if value != "inferred":
            raise ValueError("must be inferred, or a mapping of columns to types")
        return None
    return _schema(value)


def _separator(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '"\r\n':
        raise ValueError('must be one character, such as ";"; "\\t" for a tab')
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - a wrong value, whatever its type
    return value


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return text(value)


def _table_name(value: Any) -> str:
    name = text(value)
    if not _TABLE_NAME.fullmatch(name):
        raise ValueError("must be CATALOG.DATABASE.TABLE, of letters, digits and '_'")
    return name


def _local(text: str, beside: Path) -> Path:
    path = Path(urlsplit(text).path if text.startswith("file:") else text).expanduser()
    return path if path.is_absolute() else (beside / path).resolve()
