"""Names the operator who runs a command, for messages and logs of changes."""

from __future__ import annotations

import getpass
import os
import socket


def operator_name() -> str:
    """Return the user and the machine, as in ``ann@ops-1``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no such user in this container
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
