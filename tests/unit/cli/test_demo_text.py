"""The demonstration's text."""

from __future__ import annotations

from pathlib import Path

from mq.cli.demo_text import source_directory, source_lines, tag_of


def test_source_lines_are_in_file_order_without_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_bytes(b"import b\n")
    (tmp_path / "a.py").write_bytes(b"import a\n\n   \nx = 1\r\n")
    (tmp_path / "notes.txt").write_bytes(b"not this\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "c.py").write_bytes(b"not this either\n")
    assert source_lines(tmp_path, 10) == [b"import a", b"x = 1", b"import b"]
    assert source_lines(tmp_path, 2) == [b"import a", b"x = 1"]


def test_this_interpreter_has_text_enough() -> None:
    assert len(source_lines(source_directory(), 100_000)) == 100_000


def test_tags_show_the_kind_of_line() -> None:
    assert tag_of(b"    def f(self):") == "definition"
    assert tag_of(b"from a import b") == "import"
    assert tag_of(b"#: comment") == "comment"
    assert tag_of(b"x = 1") == "code"
