"""The columns of a message in Spark: names and types, without Arrow or PySpark."""

from __future__ import annotations

from typing import Final

COLUMN_TYPES: Final = {
    "topic": "string",
    "broker_name": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
    "reconsume_times": "int",
    "born_host": "string",
    "store_host": "string",
    "flag": "int",
    "sys_flag": "int",
    "physical_offset": "bigint",
}
"""All columns, in the order of the full schema, with their types in Spark's DDL."""

COLUMN_NAMES: Final = tuple(COLUMN_TYPES)
DEFAULT_COLUMNS: Final = COLUMN_NAMES[: COLUMN_NAMES.index("born_host")]
"""The default columns of a reader; the others have to be requested."""
