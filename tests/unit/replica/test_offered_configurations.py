"""The configuration at the base of a log that a leader offers: a directory keeps it, and has to have room for it."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
import structlog

from chaos.disk import MemoryDisk
from raftlog import ConfState, NodeId
from raftlog.consensus.confchange import MEMBERS_MAX, encode_conf
from raftlog.log_numbers import LogIndex, Term
from raftlog.log_transfer import Puller
from raftlog.net.frames import InstallOffer, WireError
from raftlog.net.received_entries import check_configuration
from raftlog.segment.codec import EntryRef
from raftlog.segment.meta import Base
from raftlog.segment.snapshot_install import Manifest, encode_manifest

LEADER = NodeId("n0")


def configuration(members: int, host_length: int) -> ConfState:
    names = tuple(NodeId(f"n{number}") for number in range(members))
    return ConfState(names, (), (), tuple((name, "h" * host_length + ":10931") for name in names))


def offer(conf: bytes) -> InstallOffer:
    last = EntryRef(index=LogIndex(9), term=Term(2), kind=1, pos=8192, size=100, chain=7)
    return InstallOffer(2, encode_manifest(Manifest(Base(LogIndex(5), Term(1), 4096, 3), last, conf, 4096)))


def puller(initial: ConfState) -> Puller:
    nothing: Any = None
    log = structlog.stdlib.get_logger()
    return Puller(MemoryDisk(), "/log", 4096, nothing, nothing, lambda: None, log, initial=initial)


@pytest.mark.parametrize(
    "conf",
    [encode_conf(configuration(5, 250)), encode_conf(configuration(MEMBERS_MAX + 1, 1)), cbor2.dumps(["n0"])],
)
def test_offer_with_a_configuration_that_no_change_makes_is_refused(conf: bytes) -> None:
    with pytest.raises(WireError):
        puller(configuration(3, 20)).offered(LEADER, offer(conf))


def test_offer_with_a_configuration_that_a_change_makes_is_taken() -> None:
    puller(ConfState()).offered(LEADER, offer(encode_conf(configuration(5, 60))))


def test_founders_accept_their_initial_configuration() -> None:
    founders = configuration(5, 250)
    puller(founders).offered(LEADER, offer(encode_conf(founders)))


def test_configuration_too_large_for_any_directory_is_refused() -> None:
    check_configuration(configuration(5, 60))
    with pytest.raises(ValueError, match=r"the configuration has 5 members and \d+ bytes"):
        check_configuration(configuration(5, 250))
