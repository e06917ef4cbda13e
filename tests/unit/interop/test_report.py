"""The report of other clients, and what counts as a command of mqadmin that works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.interop.mqadmin import judged
from tests.interop.mqadmin_commands import ENDLESS, NO_REQUEST, REFUSED, STEPS, WORKS, Step
from tests.interop.report import ALL, Outcome, Page, markdown
from tests.interop.security import ACL, NONE, TLS, secured

PAGE = Page(Path("interop.md"), "Clients", "all share it", "")
TITLES = {"send": "send in all forms", "push": "push consumers"}


def test_report_has_a_table_per_security_mode() -> None:
    outcomes = [
        Outcome("go", NONE, "send", True, "", version="v2", played="Monday"),
        Outcome("go", NONE, "push", False, "3 lost", played="Tuesday"),
        Outcome("go", ACL, "send", True, "", played="Tuesday"),
        Outcome("go", TLS, ALL, None, "it has no TLS", played="Tuesday"),
    ]
    text = markdown(PAGE, outcomes, TITLES, machine="M", date="D")
    plain, accounts, tls = (text.index(f"(`{name}`)") for name in (NONE, ACL, TLS))
    failed = text.index("## Failed")
    assert "| send in all forms (`send`) | yes |\n| push consumers (`push`) | **no** |" in text[plain:accounts]
    assert "go on Tuesday (send: on Monday)" in text[plain:accounts]
    assert "| send in all forms (`send`) | yes |" in text[accounts:tls]
    assert "`push`" not in text[accounts:tls]
    assert "- go: not run: it has no TLS" in text[tls:failed]
    assert "- go push (none): 3 lost" in text[failed:]


def test_keys_and_authority_are_set_while_servers_run(tmp_path: Path) -> None:
    before = dict(os.environ)
    with secured(ACL, tmp_path) as security:
        assert os.environ["RAFTMQ_ACCESS_KEY"] != security.program["INTEROP_ACCESS_KEY"]
        assert "INTEROP_ACCESS_KEY" not in security.signed_by(None).program
    with secured(TLS, tmp_path) as security:
        assert os.environ["RAFTMQ_NAMESRV_TLS_MODE"] == security.settings["tls_mode"] == "enforcing"
        assert security.program["INTEROP_TLS_CA"] == os.environ["RAFTMQ_TLS_CA"]
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("step", "output", "wrong"),
    [
        (Step("topicList", "{topic}"), "T.x\n", False),
        (Step("topicList", "{topic}"), "Tyx\n", True),
        (Step("topicList", "{topic}"), "T.x\njava.lang.RuntimeException: no", True),
        (Step("haStatus", r"CODE: 3 ", REFUSED), "a.b.MQException: CODE: 3  DESC: none of this BROKER: x", False),
        (Step("haStatus", r"CODE: 3 ", REFUSED), "success", True),
    ],
)
def test_command_is_judged_by_its_exact_output(step: Step, output: str, wrong: bool) -> None:
    row = judged(step, output, {"topic": "T.x"}, signed=True)
    assert row.wrong is wrong
    assert "BROKER" not in row.said


def test_users_cannot_be_made_without_accounts() -> None:
    step = next(step for step in STEPS if step.command == "createUser")
    assert step.expected(signed=False)[0] == REFUSED
    assert step.expected(signed=True)[0] == WORKS
    listed = next(step for step in STEPS if step.command == "listUser")
    assert not listed.is_for("java5", signed=False)


def test_no_two_steps_have_the_same_command_and_arguments() -> None:
    assert {step.verdict for step in STEPS} == {WORKS, ENDLESS, REFUSED, NO_REQUEST}
    assert len({(step.command, step.arguments) for step in STEPS}) == len(STEPS)
