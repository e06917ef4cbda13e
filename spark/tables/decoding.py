"""Decodes bodies to columns in Spark: each message gets its row, or the reason that it has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.tables.arrow_rows import rows_type
from spark.tables.column_types import (
    ColumnType,
    Primitive,
    Schema,
    Struct,
    check_names,
    columns_from_spark,
    ddl,
    inferred_type,
    merge_schemas,
)
from spark.tables.json_syntax import json_check
from spark.tables.layout import SchemaInvalid
from spark.tables.pipeline import Decode, Pipeline, Upsert
from spark.tables.reasons import why_not_csv, why_not_json, why_not_text
from spark.tables.schema_files import Bodies

ROW: Final = "raftmq_row"
REASON: Final = "raftmq_reason"
DELETED: Final = "raftmq_deleted"
_SYNTAX: Final = "raftmq_syntax"
_FOUND: Final = "raftmq_found"
_SIDES: Final = ("before", "after")
_NO_REASON: Final = "it does not fit decode.schema"


def decode_bodies(messages: DataFrame, pipeline: Pipeline, schema: Schema) -> DataFrame:
    """Decode messages into the columns `ROW`, a struct of the body's columns, and `REASON`, null if they decode.

    For upserts, which need the column ``keys``, also with `DELETED`: whether the message deletes its key. One without a
    body, a tombstone, deletes the key that its keys name.

    Args:
        schema: the columns of bodies.
    """
    decode, upsert = pipeline.decode, pipeline.upsert
    if decode.format == "raw":
        return messages.withColumn(ROW, f.struct(f.col("body"))).withColumn(REASON, f.lit(None).cast("string"))
    if decode.format == "text":
        body = f.col("body").cast("string")
        return messages.withColumn(ROW, f.struct(body.alias("body"))).withColumn(REASON, _syntax(decode, schema))
    is_debezium = upsert is not None and upsert.envelope == "debezium"
    if decode.bodies is not None:
        # By the schema file: its columns are the table's, or the columns of the change around them.
        parse_result = f.col(_FOUND)
        with_value = messages.withColumn(_FOUND, _rows(decode.bodies)(f.col("body")))
        with_value = (
            with_value.withColumn(ROW, parse_result["row"]).withColumn(_SYNTAX, parse_result["reason"]).drop(_FOUND)
        )
        reasons = [f.col(_SYNTAX)]
    else:
        wire = debezium_columns(schema) if is_debezium else schema
        with_value = messages.withColumn(_SYNTAX, _syntax(decode, wire)).withColumn(ROW, _value(decode, wire))
        misfit = f.col(ROW).isNull() | f.col(ROW).getField(_corrupt(wire)).isNotNull()
        reasons = [f.col(_SYNTAX), _explain(decode, wire, f.when(misfit, f.col("body")))]
    image = f.col(ROW)
    if is_debezium:
        op, before, after = (_change_field(decode, each) for each in ("op", *_SIDES))
        is_delete, image = op == "d", f.when(op == "d", before).otherwise(after)
        reasons += [
            f.when(op.isNull(), "it has no op: it is no change as Debezium writes it"),
            f.when(~op.isin("c", "r", "u", "d"), f.concat(f.lit("its op is "), op, f.lit("; c, r, u and d are known"))),
            f.when(image.isNull(), f.concat(f.lit("its op is "), op, f.lit(", and it has no row for that"))),
        ]
    elif upsert is not None and upsert.delete_column is not None:
        mark = f.col(f"{ROW}.`{upsert.delete_column}`").cast("string")
        is_delete = f.coalesce(mark == upsert.delete_value, f.lit(False))
    else:
        is_delete = f.lit(False)
    columns, reason = {name: image.getField(name) for name in schema}, f.coalesce(*reasons)
    if upsert is not None:
        is_tombstone = _is_tombstone(decode)
        key = _key_of_tombstone(upsert, schema)
        columns = {
            name: f.when(is_tombstone, key.get(name, f.lit(None))).otherwise(each) for name, each in columns.items()
        }
        is_delete, reason = is_tombstone | is_delete, f.when(~is_tombstone, reason)
    with_image = (
        with_value.withColumn(DELETED, f.coalesce(is_delete, f.lit(False)))
        .withColumn(REASON, reason)
        .withColumn(ROW, f.struct(*[each.alias(name) for name, each in columns.items()]))
    )
    if upsert is not None:
        with_image = with_image.withColumn(REASON, f.coalesce(REASON, *_reasons(upsert, schema, _is_tombstone(decode))))
    return with_image.drop(_SYNTAX)


def _is_tombstone(decode: Decode) -> Column:
    is_empty = f.col("body").isNull() | (f.octet_length("body") == 0)
    return is_empty | (f.col("body") == f.lit(b"null")) if decode.format == "json" else is_empty


def _key_of_tombstone(upsert: Upsert, schema: Schema) -> dict[str, Column]:
    """The columns of the key in a message's keys: in JSON, with or without Debezium's schema around it; a key of one
    column also as plain text.
    """
    keys, key = f.col("keys"), {name: schema[name] for name in upsert.key if name in schema}
    if not key:
        return {}
    around = {} if "payload" in key else {"payload": Struct(tuple(key.items()))}
    key_columns = f.from_json(keys, ddl({**key, **around}))
    columns = {
        name: f.coalesce(key_columns.getField(name), key_columns["payload"].getField(name))
        if around
        else key_columns.getField(name)
        for name in key
    }
    if len(upsert.key) == 1:
        for name, kind in key.items():
            if isinstance(kind, Primitive):
                columns[name] = f.when(keys.startswith("{"), columns[name]).otherwise(keys.try_cast(str(kind)))
    return columns


def _reasons(upsert: Upsert, schema: Schema, is_tombstone: Column) -> list[Column]:
    """Reasons for changes without their key, or without telling whether they are the latest."""

    def is_null(name: str) -> Column:
        return f.col(f"{ROW}.`{name}`").isNull() if name in schema else f.lit(True)

    def unknown(name: str) -> str:
        return f"it has no body, and its keys do not say which {name} it deletes"

    reasons = [
        f.when(is_null(name), f.when(is_tombstone, unknown(name)).otherwise(f"its key {name} is null or missing"))
        for name in upsert.key
    ]
    if upsert.order is not None:
        # A tombstone of Debezium follows a change that has deleted the key: without an order it changes nothing.
        is_free = is_tombstone if upsert.envelope == "debezium" else f.lit(False)
        problem = f"its order {upsert.order} is null or missing"
        reasons.append(f.when(is_null(upsert.order) & ~is_free, problem))
    return reasons


def debezium_columns(schema: Schema) -> dict[str, ColumnType]:
    """Return the columns of a change in Debezium's format, with or without the schema around it."""
    row = Struct(tuple(schema.items()))
    change: dict[str, ColumnType] = {"op": Primitive("string"), **dict.fromkeys(_SIDES, row)}
    return {**change, "payload": Struct(tuple(change.items()))}


def _change_field(decode: Decode, name: str) -> Column:
    """A field of a change; in JSON it may be inside of the payload."""
    column = f.col(f"{ROW}.{name}")
    return column if decode.bodies is not None else f.coalesce(column, f.col(f"{ROW}.payload.{name}"))


def _corrupt(wire: Schema) -> str:
    """A column that no body has, in which Spark puts bodies that do not fit."""
    column = "raftmq_corrupt"
    while column in {name.lower() for name in wire}:
        column += "_"
    return column


def _value(decode: Decode, wire: Schema) -> Column:
    corrupt = _corrupt(wire)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    shape, body = ddl({**wire, corrupt: Primitive("string")}), f.col("body").cast("string")
    if decode.format == "json":
        return f.from_json(body, shape, options)
    # A quote inside of quotes is written twice, as everywhere but in Spark; the end of the line is not part of it.
    line = f.regexp_replace(body, r"\r?\n\z", "")
    return f.from_csv(line, shape, {**options, "sep": decode.separator, "escape": '"'})


def infer_columns(messages: DataFrame, schema: Schema, adds: bool) -> dict[str, ColumnType]:
    """Return the columns of JSON bodies: the known ones, and with ``adds`` also new ones that the messages have.

    Empty if no message has any field. Raises SchemaInvalid for fields that no table can have.
    """
    if schema and not adds:
        return dict(schema)
    # A dead letter adds no column, nor does a field that differs from a known column only in case.
    is_json = _syntax(Decode("json", new_fields="add"), schema).isNull()
    bodies = messages.where(is_json).select(f.col("body").cast("string"))._jdf
    spark = messages.sparkSession
    texts = getattr(bodies, "as")(spark._jvm.org.apache.spark.sql.Encoders.STRING())
    try:
        reader = spark._jsparkSession.read().option("mode", "DROPMALFORMED")  # or they become a column
        struct = json.loads(reader.json(texts).schema().json())
    except AnalysisException as error:  # two fields that differ only in case
        raise SchemaInvalid(f"the messages have fields that cannot be columns: {error}; set decode.schema") from error
    try:
        inferred_types = {name: inferred_type(kind) for name, kind in columns_from_spark(struct).items()}
        new = merge_schemas(schema, inferred_types)
        check_names(new)
    except ValueError as error:
        raise SchemaInvalid(f"the messages have fields that cannot be columns: {error}; set decode.schema") from error
    return new


# -- on executors ------------------------------------------------------------------------------------------------------


def _syntax(decode: Decode, schema: Schema) -> Column:
    """The reason that a body is not even of its format, which Spark's decoders read over; null if it is."""
    return _on_bodies(_syntax_check(decode, schema))(f.col("body"))


def _rows(bodies: Bodies) -> Any:
    """Make a function of Spark that applies `arrow_rows` to bodies. Executors get the schema, and no file."""
    columns_and_decoder: list[Any] = []

    def rows(values: pa.Array) -> pa.Array:
        from spark.tables.arrow_rows import arrow_rows

        if not columns_and_decoder:
            columns_and_decoder.extend((bodies.columns(), bodies.decoder()))
        return arrow_rows(values, *columns_and_decoder)

    return f.arrow_udf(rows, str(rows_type(bodies.columns())))


def _explain(decode: Decode, schema: Schema, body: Column) -> Column:
    is_json, separator = decode.format == "json", decode.separator  # executors get these, and no module of `decode`

    def explain(body: bytes) -> str:
        reason = why_not_json(body, schema) if is_json else why_not_csv(body, schema, separator)
        return reason or _NO_REASON

    return _on_bodies(explain)(body)


def _syntax_check(decode: Decode, schema: Schema) -> Callable[[bytes], str | None]:
    match decode.format:
        case "json":
            return json_check(decode.new_fields, schema)
        case "csv":
            separator = decode.separator
            return lambda body: why_not_csv(body, schema, separator)
        case _:
            return why_not_text


def _on_bodies(check: Callable[[bytes], str | None]) -> Any:
    """Make a function of Spark from a check; null gives null, since Spark calls it for all rows of a conditional."""
    return f.udf(lambda body: None if body is None else check(bytes(body)), "string", useArrow=True)
