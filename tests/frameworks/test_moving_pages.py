"""The pages for those who come from other clients: the programs "after" do what they say."""

from __future__ import annotations

import io
import re
import threading
from functools import partial

import pytest

from tests.frameworks.pages import PAGES, examples

MOVING = sorted(path.name for path in PAGES.glob("from-*.md"))


def test_migration_pages_are_the_expected_three() -> None:
    assert MOVING == ["from-aio-pika.md", "from-kafka-clients.md", "from-nats-py.md"]


@pytest.mark.parametrize("page", MOVING)
def test_programs_of_a_page_print_their_stated_output(namesrv: str, page: str) -> None:
    found = examples(page, namesrv)
    assert found
    for source in found:
        code = compile(source, page, "exec", dont_inherit=True)
        output = io.StringIO()
        # Only what the program prints: the servers of this process log to the same stdout.
        names = {"__name__": "__main__", "print": partial(print, file=output)}
        program = threading.Thread(target=exec, args=(code, names), daemon=True)
        program.start()
        program.join(30)
        assert not program.is_alive(), f"{page}: a program does not end"
        assert output.getvalue().splitlines() == re.findall(r"# -> (.*)$", source, re.MULTILINE), page


@pytest.mark.parametrize("page", MOVING)
def test_programs_before_are_python(page: str) -> None:
    text = (PAGES / page).read_text()
    before = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(before) == len(re.findall(r"^Before:$", text, re.MULTILINE)) > 0
    for source in before:
        compile(source, page, "exec", flags=0x2000)  # with `await` at the top
