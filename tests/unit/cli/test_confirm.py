"""Who is asked before a deletion, and what happens after each answer."""

from __future__ import annotations

import io

import pytest

from mq.cli.confirm import confirm
from mq.cli.errors import CommandFailed


class Terminal(io.StringIO):
    """Standard input at which somebody answers."""

    def isatty(self) -> bool:
        return True


async def loss() -> str:
    return "topic T has 10 messages"


async def never() -> str:
    raise AssertionError("asked what is lost although nobody is asked")


async def test_confirmation_shows_the_loss_and_accepts_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in ("n\n", "\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        with pytest.raises(CommandFailed, match="nothing was deleted"):
            await confirm(loss, yes=False)
        assert "topic T has 10 messages." in capsys.readouterr().err


async def test_confirmation_accepts_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    await confirm(loss, yes=False)


async def test_confirmation_is_skipped_with_yes_or_in_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    await confirm(never, yes=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    await confirm(never, yes=False)
