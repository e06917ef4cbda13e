"""Types of columns are parsed as Spark writes them, and a change that would break a table is named."""

from __future__ import annotations

import pytest

from spark.tables.column_types import (
    Array,
    ColumnType,
    Primitive,
    Struct,
    columns_from_spark,
    compare,
    fits,
    inferred_type,
    merge_schemas,
    parse_schema,
    parse_type,
    written_schema,
)


@pytest.mark.parametrize(
    "written",
    ["bigint", "decimal(10,2)", "array<string>", "map<string,array<int>>", "struct<a:int,`b c`:struct<d:date>>"],
)
def test_types_are_written_unchanged(written: str) -> None:
    assert str(parse_type(written)) == written


def test_alternative_type_names_are_accepted() -> None:
    assert [str(parse_type(each)) for each in ("LONG", " Integer ", "decimal", "struct<a int, b : bool>")] == [
        "bigint",
        "int",
        "decimal(10,0)",
        "struct<a:int,b:boolean>",
    ]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("bigit", "did you mean 'bigint'?"),
        ("array<int", "'>' is missing"),
        ("array int", "'int' is where '<' must be"),
        ("decimal(50,2)", "1 to 38 digits"),
        ("decimal(5,6)", "1 to 38 digits"),
        ("int int", "'int' is left over"),
        ("struct<a:int,A:int>", "only case differs"),
        ("struct<>", "expected a field name"),
        ("", "a type is missing"),
        ("in;t", "is not understood"),
        ("array<" * 40 + "int" + ">" * 40, "nested more than 32 deep"),
    ],
)
def test_wrong_column_types_are_refused_with_the_reason(written: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_type(written)
    assert said in str(caught.value)


def test_columns_are_added_and_breaking_changes_are_reported() -> None:
    table = parse_schema({"id": "bigint", "note": "string", "price": "decimal(12,2)"})
    wanted = parse_schema({"id": "int", "Note": "string", "price": "decimal(10,3)", "new": "date"})
    found = compare(table, wanted)
    assert written_schema(found.new_columns) == {"new": "date"}
    assert found.reasons == {
        "Note": "the table has it as note: names that differ only in case are one column",
        "price": "the table has decimal(12,2), the pipeline writes decimal(10,3)",
    }


@pytest.mark.parametrize(
    ("value", "column", "does"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "double", False),
        ("int", "string", False),
        ("decimal(5,2)", "decimal(8,3)", True),
        ("decimal(5,2)", "decimal(5,3)", False),
        ("array<int>", "array<bigint>", True),
        ("struct<a:int>", "struct<a:int,b:int>", False),
        ("struct<a:int>", "struct<a:bigint>", True),
        ("map<string,int>", "map<string,bigint>", True),
        ("timestamp", "date", False),
    ],
)
def test_value_type_fits_column_only_if_no_value_changes(value: str, column: str, does: bool) -> None:
    assert fits(parse_type(value), parse_type(column)) is does


def test_pinned_columns_stay_and_new_ones_follow() -> None:
    pinned = parse_schema({"id": "bigint", "when": "string"})
    found = parse_schema({"When": "date", "a": "string", "id": "string"})
    assert written_schema(merge_schemas(pinned, found)) == {"id": "bigint", "when": "string", "a": "string"}


def nested(levels: int) -> dict[str, ColumnType]:
    kind: ColumnType = Primitive("bigint")
    for _ in range(levels):
        kind = Struct((("a", kind),))
    return {"top": kind}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Struct((("x", Primitive("int")), ("X", Primitive("int")))), "string"),
        (Array(Struct((("", Primitive("int")),))), "array<string>"),
        (Struct((("a", Primitive("int")), ("b", Struct(((" ", Primitive("int")),))))), "struct<a:int,b:string>"),
    ],
)
def test_inferred_object_that_fits_no_column_becomes_text(kind: ColumnType, wanted: str) -> None:
    assert str(inferred_type(kind)) == wanted


@pytest.mark.parametrize("levels", [1, 32, 33, 100])
def test_inferred_type_parses_to_the_same_schema(levels: int) -> None:
    found = {name: inferred_type(kind) for name, kind in nested(levels).items()}
    assert parse_schema(written_schema(found)) == found
    assert ("bigint" in str(found["top"])) is (levels <= 32)


def test_field_that_is_always_null_has_no_column_yet() -> None:
    struct = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "n", "type": "void"},
            {"name": "l", "type": {"type": "array", "elementType": "void"}},
            {"name": "s", "type": {"type": "struct", "fields": [{"name": "x", "type": "void"}]}},
            {"name": "t", "type": {"type": "struct", "fields": [{"name": "y", "type": "double"}]}},
        ],
    }
    found = columns_from_spark(struct)
    assert written_schema(found) == {"a": "bigint", "l": "array<string>", "t": "struct<y:double>"}
