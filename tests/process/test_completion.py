"""Completion in interactive shells: installed with the command, and asked for with the tab key."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.process

SECONDS_MAX: Final = 60.0
ESCAPES: Final = re.compile(rb"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>])")
TAB: Final = b"\t"
BELL: Final = b"\x07"


class Terminal:
    """A shell at a terminal, and the person in front of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._shown = b""

    def type(self, text: bytes) -> None:
        os.write(self._descriptor, text)

    def wait(self, text: bytes) -> None:
        """Until this is on the screen, behind what was waited for before."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in ESCAPES.sub(b"", self._shown):
            assert time.monotonic() < deadline, f"{text!r} does not come: {self._shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self._shown += os.read(self._descriptor, 4096)
                if b"\x1b[c" in self._shown or b"\x1b[0c" in self._shown:
                    self._shown = self._shown.replace(b"\x1b[c", b"").replace(b"\x1b[0c", b"")
                    self.type(b"\x1b[?1;2c")  # fish asks what terminal this is
        self._shown = b""


@contextmanager
def terminal(shell: str, home: Path) -> Iterator[Terminal]:
    """An interactive shell in this home directory, which finds the command of this checkout."""
    ours, theirs = os.openpty()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "HOME": str(home),
        "PATH": path,
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "SHELL": shell,
        "COLUMNS": "200",
    }

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [shell, "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=home,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installed_completion_completes_names_and_options(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"apt install {shell}")
    if shell == "zsh":
        (tmp_path / ".zshrc").write_text("")  # otherwise it asks a new user what to write there
    with terminal(shell, tmp_path) as person:
        person.type(b"raftmq --install-completion; echo in''stalled\r")
        person.wait(b"installed\r\n")
    with terminal(shell, tmp_path) as person:
        person.type(b"echo rea''dy\r")
        person.wait(b"ready\r\n")
        person.type(b"raftmq topic cre" + TAB)
        if shell == "zsh":
            person.wait(BELL)  # the first time in a session it has only loaded the function
            person.type(TAB)
        person.wait(b"ate ")
        person.type(b"T --que" + TAB)
        person.wait(b"ues")
