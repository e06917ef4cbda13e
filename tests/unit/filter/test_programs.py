"""Names of filter programs."""

from __future__ import annotations

import pytest

from mq.filter.programs import PROGRAM_BYTES_MAX, ProgramName, ProgramRefused, name_of, parse_program_name

SHA = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name_of("wasm", b"abc"), f"wasm:{SHA}"),
        (name_of("wasm", b"abc", "skip"), f"wasm:{SHA}:skip"),
        (name_of("sql", b"abc"), f"sql:{SHA}"),
        (ProgramName("java", SHA), f"java:{SHA}"),
    ],
)
def test_program_name_survives_parsing(name: ProgramName, text: str) -> None:
    assert name.text == text
    assert parse_program_name(text) == name
    assert name.is_of(b"abc")
    assert not name.is_of(b"abd")


@pytest.mark.parametrize("text", ["", "wasm", f"wat:{SHA}", f"wasm:{SHA[1:]}", f"wasm:{SHA.upper()}", f"sql:{SHA}:x"])
def test_invalid_program_names_are_refused(text: str) -> None:
    with pytest.raises(ProgramRefused, match="is not the name of a filter program"):
        parse_program_name(text)


@pytest.mark.parametrize("content", [b"", bytes(PROGRAM_BYTES_MAX + 1)])
def test_program_has_some_bytes_and_not_too_many(content: bytes) -> None:
    with pytest.raises(ProgramRefused, match=f"allowed: 1 to {PROGRAM_BYTES_MAX}"):
        name_of("wasm", content)
