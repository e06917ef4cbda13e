"""Lists the requests with the fields of their headers, and the response codes: a page of `make docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES


def page() -> Iterator[str]:
    """The lines of the page."""
    yield "# Requests\n"
    yield (
        "Every request that brokers and name servers know, with the fields of its header by their names on the wire; "
        "*in italics* those that may be left out. Bodies, and what our own requests (9001 and later) do: "
        "[what raftmq adds](../wire-protocol.md). In brackets: the module of `mq.protocol.requests`.\n"
    )
    yield "| code | request | header |\n|---:|---|---|"
    for kind in sorted(REQUEST_CLASSES, key=code_of):
        code, module = code_of(kind), kind.__module__.rpartition(".")[2]
        yield f"| {code} | `{RequestCode(code).name}`{about(kind)} (`{module}`) | {fields_of(kind)} |"
    yield "\n## Response codes\n\n| code | name |\n|---:|---|"
    for code in ResponseCode:
        yield f"| {code.value} | {code.name} |"


def code_of(kind: type[msgspec.Struct]) -> int:
    return int(kind.__struct_config__.tag)  # type: ignore[arg-type]


def about(kind: type[msgspec.Struct]) -> str:
    """The first line of a docstring behind a colon, without the code at its beginning; often a code says it all."""
    first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    told = re.sub(r"^(Request code )?\d+[^:.]*[:.] ?", "", first).removesuffix(".")
    return told and ": " + told.replace("``", "`").replace("|", r"\|")


def fields_of(kind: type[msgspec.Struct]) -> str:
    ext = {each.name: each.type for each in msgspec.structs.fields(kind)}.get("ext")
    shown = []
    for each in msgspec.structs.fields(ext) if ext is not None else ():
        text = f"`{each.encode_name}` {type_name(each.type)}"
        shown.append(text if each.required else f"*{text}*")
    return ", ".join(shown)


def type_name(annotation: Any) -> str:
    """A type as words: ``int`` for all kinds of integers."""
    if hasattr(annotation, "__metadata__"):
        return type_name(get_args(annotation)[0])
    if parts := get_args(annotation):
        return " or ".join(type_name(each) for each in parts if each is not type(None))
    return str(getattr(getattr(annotation, "__supertype__", annotation), "__name__", annotation))
