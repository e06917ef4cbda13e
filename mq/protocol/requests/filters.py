"""Filter servers and their consumers."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class RegisterFilterServerExt(Ext, rename=wire(address="filterServerAddr")):
    """The address at which consumers reach the filter server: HOST:PORT."""

    address: str


class RegisterFilterServer(Request, tag=int(Code.REGISTER_FILTER_SERVER)):
    """Request code 301: register a filter server at this broker."""

    ext: RegisterFilterServerExt = msgspec.field(name="extFields")


class FilterServerRegistered(Reply):
    """The broker at which the filter server is registered (301)."""

    broker_name: str
    broker_id: I64


class RegisterFilterClassExt(Ext, rename=wire(class_name="className", class_crc="classCRC")):
    """A filter program; it is in the body.

    ``class_name`` is the name of a Java class for Java source, else a `mq.filter.programs.ProgramName`. ``class_crc``
    is the CRC-32 of the body without its highest bit.
    """

    consumer_group: str
    topic: str
    class_name: str
    class_crc: I32 = 0


class RegisterMessageFilterClass(Request, tag=int(Code.REGISTER_MESSAGE_FILTER_CLASS)):
    """Request code 302, consumer to filter server: upload the program that filters the messages of its group."""

    ext: RegisterFilterClassExt = msgspec.field(name="extFields")


class FilterExt(Ext):
    """The filter of a consumer group for a topic; ``program`` is a `mq.filter.programs.ProgramName`."""

    consumer_group: str
    topic: str
    program: str


class PutFilter(Request, tag=int(Code.PUT_FILTER)):
    """Request code 9020, our own: set this filter for the topic as the group's filter; the program is in the body."""

    ext: FilterExt = msgspec.field(name="extFields")


class GetFilter(Request, tag=int(Code.GET_FILTER)):
    """Request code 9021, our own: return the group's filter; if a program is named, only if it is the filter."""

    ext: FilterExt = msgspec.field(name="extFields")


class FilterVersion(Reply):
    """The number of changes of a group's filter for a topic (9021), and its `mq.filter.programs.ProgramName`, which
    release 0.1.0 does not say.
    """

    version: I64
    program: str = ""


class JudgeRequestExt(Ext):
    """The address, without the port, of the sender of the request whose frame is in the body.

    ``messages`` and ``record_bytes`` were given to the sender by this request: a limited user is charged for them.
    """

    address: str
    messages: I32 = 0
    record_bytes: I64 = 0


class Judged(Reply):
    """The request is allowed (9022): whether its user has a quota, and when that is paid."""

    is_limited: bool = False
    wait_ms: I64 = 0


class JudgeRequest(Request, tag=int(Code.JUDGE_REQUEST)):
    """Request code 9022, our own: return whether the sender may make a request, by its signature and permissions."""

    ext: JudgeRequestExt = msgspec.field(name="extFields")
