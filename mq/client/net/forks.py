"""Detects forks of this process, so that a child process leaves the sockets of its parent's clients alone.

After a fork both processes have the same connections. If the child read or wrote one, or shut it down, the parent would
lose answers or its connection. So in the child each of these sockets is replaced, under its number, by one that is not
connected: whatever the child does with it, also while it ends, cannot reach the parent's brokers, and the parent's
connection ends when the parent closes it.

A server in C that forks, such as uWSGI, calls no hooks of Python in the child. There the number of the process tells,
as soon as somebody asks for `forks`; every client does before it does anything.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Protocol


class _HasSocket(Protocol):
    """A connection; `fileno` is -1 once its socket is closed."""

    def fileno(self) -> int: ...


_forks = 0
_process = os.getpid()
_lock = threading.RLock()
"""Taken only by a child, while no process forks: its clients wait for the guarded sockets. A finalizer of the
parent's objects, which may run meanwhile, does not wait."""
_begins = False
_in_children: list[Callable[[], None]] = []
_connections: dict[int, weakref.ref[_HasSocket]] = {}
"""Not a WeakSet: at the moment of a fork, another thread may be in the middle of changing it."""


def forks() -> int:
    """Return the number of forks from the process that imported this module to this process."""
    if os.getpid() != _process:
        with _lock:
            if os.getpid() != _process and not _begins:
                _begin_child()
    return _forks


def call_in_children(function: Callable[[], None]) -> None:
    """Call `function` in each child process forked from now on, as soon as the child uses this module."""
    _in_children.append(function)


def guard_socket(connection: _HasSocket) -> None:
    """Replace the socket of `connection` in child processes that are forked from now on."""
    _connections[id(connection)] = weakref.ref(connection)


def release_socket(connection: _HasSocket) -> None:
    """Stop replacing a socket that is about to be closed."""
    _connections.pop(id(connection), None)


def _begin_child() -> None:
    global _begins, _forks, _process
    _begins = True
    _forks += 1
    try:
        _leave_parents_sockets()
        for function in _in_children:
            function()
        _process = os.getpid()
    finally:
        _begins = False


def _leave_parents_sockets() -> None:
    references = list(_connections.values())
    _connections.clear()
    numbers = [connection.fileno() for each in references if (connection := each()) is not None]
    if any(number >= 0 for number in numbers):
        with socket.socket() as replacement:
            for number in numbers:
                if number >= 0:
                    os.dup2(replacement.fileno(), number, inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
