"""Tests are named in plain English: who does what, when, with the trade's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent

WORDS_MIN, WORDS_MAX = 3, 12
STILTED = re.compile(
    r"_who_(?!leads)|_anew(_|$)|_(is|are|was|were|be)_no_|_(told|tell|tells)(_|$)|hung_up|_be_had|_but_for_"
    r"|_as_(it|they)_(is|was|are|were)(_|$)|_(comes?|came)_again|_knows?_of_|_for_itself|_of_itself"
    r"|_(makes|make|made)_(up_)?for|_nothing_of_|_not_any_more|_no_more(_|$)|_all_the_same"
    r"|_(?<!named_)(calm|lone|strange|foreign|grown|wanted)(_|$)|_counts?_as_|_(goes|went)_"
)
"""Turns of phrase for which there are plain ones: redelivered, refused, reported, notified, disconnected, unchanged; or
adjectives without their reason, as "strange" for invalid.
"""

ROUNDABOUT = re.compile(
    r"nobody|whatever|_what(_|$)|_says?_so(_|$)|_(is|are|was|were)_found(_|$)|_beside(_|$)|_each_is_|side_by_side"
    r"|_is_said(_|$)|_of_which_|_whose_|_(go|goes)_on(_|$)|_(say|says|hears?|learns?)_|_anything|_(any|some)body"
    r"|_apart(_|$)|_harms?(_|$)|_that_(is|are)_gone|_looked_at|_not_taken|_is_as_|_so_that_|_by_itself"
)
"""Names that leave it to the reader what the subject is or does: "what is refused", "nobody waits", "the page says so".
The plain name has both: refused sends, an idle client, the page shows.
"""

DANGLING = re.compile(
    r"^test_(an?(?!_few)|the(?!_same)|its?|they|that|those|where|when|whoever|one_that|without|which|how)_"
    r"|_(it|them|there|so|ours|goes|comes?|said)$|_(waited|looked)_for|_whoever_|_whichever_|_however_"
    r"|_of_(its|their|ones)_own|_out_as_|_(is|are)_(that|those)_of_|_those_that_"
)
"""Names that begin with an article or a clause, or end in a pronoun: only the body of the test tells who does what."""

THAT_MAX = 445
"""How many names may have a relative clause ("message_that_is_sent"). It falls: "sent_message" is shorter."""


def stilted_tests(source: str) -> Iterator[str]:
    """Names of tests that are long, not plain English, or that need the test to be understood."""
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE):
        if name.count("_") > WORDS_MAX or STILTED.search(name) or ROUNDABOUT.search(name) or DANGLING.search(name):
            yield name


def fragments(source: str) -> Iterator[str]:
    """Names of tests that are too short for a subject, a verb and an object: "single node", "bad names"."""
    functions = (
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for name in functions:
        if name.startswith("test_") and name.count("_") < WORDS_MIN:
            yield name


def test_tests_are_named_in_plain_english() -> None:
    breaches = [
        f"{path.relative_to(TESTS)}: {name}" for path in TESTS.rglob("*.py") for name in stilted_tests(path.read_text())
    ]
    assert not breaches, f"subject, verb, object, with the trade's words, at most {WORDS_MAX}:\n" + "\n".join(breaches)


def test_names_have_enough_words() -> None:
    breaches = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("test_*.py")
        for name in fragments(path.read_text())
    ]
    assert not breaches, f"subject, verb, object, at least {WORDS_MIN} words:\n" + "\n".join(breaches)


def test_fewer_names_have_relative_clauses() -> None:
    sources = [path.read_text() for path in TESTS.rglob("*.py")]
    names = [
        name
        for source in sources
        for name in re.findall(r"^ *(?:async )?def (test_\w+_that_\w+)", source, re.MULTILINE)
    ]
    assert len(names) <= THAT_MAX, "say it without a relative clause, and lower THAT_MAX if there are fewer"


def test_checker_finds_stilted_test_names() -> None:
    assert list(stilted_tests("def test_who_is_silent_is_hung_up_on(): ...")) == ["test_who_is_silent_is_hung_up_on"]
    assert list(stilted_tests("async def test_a_b_c_d_e_f_g_h_i_j_k_l_m(): ..."))
    assert list(stilted_tests("def test_strange_file_is_refused(): ..."))
    assert not list(stilted_tests("    async def test_silent_client_is_disconnected(): ..."))


def test_checker_finds_fragments() -> None:
    assert list(fragments("def test_single_node(): ...")) == ["test_single_node"]
    assert not list(fragments("def test_single_node_elects_itself(): ..."))


def test_checker_finds_roundabout_test_names() -> None:
    for name in ("test_what_is_refused_is_said", "test_nobody_waits", "test_damaged_page_says_so"):
        assert list(stilted_tests(f"def {name}(): ..."))
    assert not list(stilted_tests("def test_refused_sends_leave_no_state(): ..."))


def test_checker_finds_dangling_test_names() -> None:
    for name in ("test_a_disk_is_full", "test_full_disk_takes_it", "test_without_numbers_messages_are_stored_twice"):
        assert list(stilted_tests(f"def {name}(): ..."))
    assert not list(stilted_tests("def test_full_disk_deletes_waiting_messages(): ..."))
