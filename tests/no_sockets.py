"""A plugin for `make test-unit`: whoever binds or connects a socket, or starts a process, fails and is told so.

Such a test belongs to `make test`; the Makefile names the files that `make test-unit` leaves out.
"""

from __future__ import annotations

import sys

import trio  # noqa: F401 - asks ldconfig for the name of a library, once

_REFUSED = frozenset({"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn"})


class SocketOrProcess(BaseException):
    """Not an `Exception`, so that the code under test does not take it for a failed connection."""


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _REFUSED:
        raise SocketOrProcess(f"{event} in `make test-unit`: the Makefile has to leave this file out")


sys.addaudithook(_refuse)
