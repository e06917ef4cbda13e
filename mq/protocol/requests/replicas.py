"""Our own requests between the replicas of a group. Replication itself uses another protocol."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class ForwardExt(Ext):
    """The origin of the request. ``identity`` is the identity of the replicated log; ``born_host`` the client's IPv4
    address and port in the format of records, in hexadecimal; ``serialization`` the client's header encoding;
    ``client_id`` its id in the consumer group of the request, if known and relevant; ``user`` the sender, if it has a
    quota.
    """

    identity: str
    born_host: str
    serialization: I32
    client_id: str = ""
    user: str = ""


class Forward(Request, tag=int(Code.FORWARD)):
    """Request code 9002, our own: forward a client's request to another replica; the body is its complete frame."""

    ext: ForwardExt = msgspec.field(name="extFields")


class AnnounceReplicaExt(Ext):
    """The header of 9004: a replica, its client address ``host:port``, and the replicated log's ``identity``."""

    identity: str
    node_id: str
    address: str


class AnnounceReplica(Request, tag=int(Code.ANNOUNCE_REPLICA)):
    """Request code 9004, our own, to the leader of a group: report the client address of the sender."""

    ext: AnnounceReplicaExt = msgspec.field(name="extFields")


class ReportArchivedExt(Ext):
    """The header of 9018: the archive at ``url`` has the log up to entry ``index`` of ``term``, which ends before
    physical offset ``pos``. ``chain`` is the checksum chain after that entry, ``identity`` the replicated log's.

    ``begin_pos`` is where the archive begins; -1 if the sender does not know. ``manifest`` is "older" if the manifest
    has less than the group knows to be archived, "whole" if it has all of that again, and empty without news.
    Files below ``expired_pos`` are to be deleted in the archive; -1 for none. ``node_id`` is that of a sender whose
    queues have entries only from the physical offset ``queues_from`` on, while the group serves older messages.

    ``member`` tells how long it is set to keep archived messages: ``kept_seconds``, and ``kept_bytes`` of them; 0 for
    ever. It is empty in a report without that.
    """

    identity: str
    url: str
    index: int
    term: int
    pos: int
    chain: int
    begin_pos: int = -1
    manifest: str = ""
    expired_pos: int = -1
    node_id: str = ""
    queues_from: int = -1
    member: str = ""
    kept_seconds: int = 0
    kept_bytes: int = 0


class ReportArchivedReply(Reply):
    """The response to 9018: the group's retention of archived messages; 0: no limit, -1: not all members reported."""

    kept_seconds: int = -1
    kept_bytes: int = -1


class ReportArchived(Request, tag=int(Code.REPORT_ARCHIVED)):
    """Request code 9018, our own, to the leader of a group: report how much of the log the sender has archived."""

    ext: ReportArchivedExt = msgspec.field(name="extFields")


class AuthenticateReplicaExt(Ext):
    """The header of 9005, in hexadecimal: a connection's first request has ``call`` and ``bound``, the second the rest.

    ``bound``: the proofs cover the listener's certificate. ``identity`` is the identity of the replicated log,
    ``node_id`` the calling replica, ``address`` the address that it dialled.
    """

    call: str = ""
    bound: bool = False
    proof: str = ""
    identity: str = ""
    node_id: str = ""
    address: str = ""


class AuthenticateReplica(Request, tag=int(Code.AUTHENTICATE_REPLICA)):
    """Request code 9005, our own: prove to another replica that both know the secret (`raftlog.net.authentication`)."""

    ext: AuthenticateReplicaExt = msgspec.field(name="extFields")


class ChallengeReply(Reply):
    """The response to 9005: the challenge, in hexadecimal, by which the other replica has to prove itself."""

    challenge: str
