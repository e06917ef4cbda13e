"""Requests of filter servers and of their consumers."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class RegisterFilterServerExt(Ext, rename=wire(address="filterServerAddr")):
    """The header of request code 301: the address, HOST:PORT, at which consumers reach the filter server."""

    address: str


class RegisterFilterServer(Request, tag=int(Code.REGISTER_FILTER_SERVER)):
    """Request code 301: register a filter server at this broker."""

    ext: RegisterFilterServerExt = msgspec.field(name="extFields")


class FilterServerRegistered(Reply):
    """The response to request code 301: the broker at which the filter server is registered."""

    broker_name: str
    broker_id: I64


class RegisterFilterClassExt(Ext, rename=wire(class_name="className", class_crc="classCRC")):
    """The header of request code 302, which describes the filter program in the body.

    ``class_name`` is the name of a Java class for Java source, else a `mq.filter.programs.ProgramName`. ``class_crc``
    is the CRC-32 of the body without its highest bit.
    """

    consumer_group: str
    topic: str
    class_name: str
    class_crc: I32 = 0


class RegisterMessageFilterClass(Request, tag=int(Code.REGISTER_MESSAGE_FILTER_CLASS)):
    """Request code 302, consumer to filter server: upload the program that filters messages for its group."""

    ext: RegisterFilterClassExt = msgspec.field(name="extFields")


class FilterExt(Ext):
    """A consumer group's filter for a topic. ``program`` is a `mq.filter.programs.ProgramName` as text."""

    consumer_group: str
    topic: str
    program: str


class PutFilter(Request, tag=int(Code.PUT_FILTER)):
    """Request code 9020, our own: make the program in the body the group's filter for the topic."""

    ext: FilterExt = msgspec.field(name="extFields")


class GetFilter(Request, tag=int(Code.GET_FILTER)):
    """Request code 9021, our own: return the group's filter. If the request names a program, return only that one."""

    ext: FilterExt = msgspec.field(name="extFields")


class FilterVersion(Reply):
    """The response header of 9021: how often the filter was changed, and its `mq.filter.programs.ProgramName`, which
    release 0.1.0 omits.
    """

    version: I64
    program: str = ""


class JudgeRequestExt(Ext):
    """The header of request code 9022: the address, without port, of the client whose request frame is in the body.

    ``messages`` and ``record_bytes`` were given to the sender by this request: a limited user is charged for them.
    """

    address: str
    messages: I32 = 0
    record_bytes: I64 = 0


class Judged(Reply):
    """The response to 9022: the request is allowed. Says whether the user has a quota, and how long to wait for it."""

    is_limited: bool = False
    wait_ms: I64 = 0


class JudgeRequest(Request, tag=int(Code.JUDGE_REQUEST)):
    """Request code 9022, our own: return whether signature and permissions allow a client's request."""

    ext: JudgeRequestExt = msgspec.field(name="extFields")
