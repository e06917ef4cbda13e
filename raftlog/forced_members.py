"""Who belongs to a group whose log is at hand and whose majority is not: looked up in a directory, and rewritten."""

from __future__ import annotations

from raftlog.consensus.confchange import encode_conf
from raftlog.repair_mode import members_in
from raftlog.segment.meta import MetaState
from raftlog.segment.meta_keys import CONF


def configuration_at_base(state: MetaState) -> bytes:
    """The configuration that a log begins with, encoded, as far as its vote file says so; empty if it does not."""
    if (note := state.notes.get(CONF)) is not None:
        return note
    noted = members_in(state.notes)
    return encode_conf(noted[1]) if noted is not None and noted[0] == 0 else b""
