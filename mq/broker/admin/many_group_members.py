"""Request code 9031: the members of many consumer groups, with their subscriptions and queues.

Each replica answers from the heartbeats it received. Which queues a member has only that member knows: the broker asks
all members of the group, some at a time, and answers when all have answered, or after `ANSWER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from mq.broker.admin.client_group_members import RELAY_VERSION_MIN, connection_data, proxied_data
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_requests import NoResponse
from mq.broker.net.connection import ClientConnection
from mq.broker.net.consumer_group import Member, summary_text
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps, check_length
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.members import (
    GROUPS_MAX,
    AskMembers,
    GroupMember,
    MembersOfGroups,
    MembersQuestion,
)
from mq.protocol.requests.relayed import RunningInfoExt

ANSWER_SECONDS: Final = 2.0
MEMBER_BYTES_MAX: Final = 256 * 1024
"""Maximum size of one member's answer, enough for 700 queues; a longer answer is not passed on."""
QUEUES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of all members' answers together, as texts in ours; later answers are not passed on."""
DIFFERENT_MAX: Final = 10
"""Subscriptions of a group whose members differ that are told."""
DIFFERING_MAX: Final = 200
"""Groups whose members differ that are told."""
MEMBER_BYTES: Final = 1024
"""More than a member without queues takes in the answer, mostly."""


class MembersOfManyGroups(Service):
    """Answers queries for the members of many consumer groups."""

    def __init__(self, context: BrokerContext) -> None:
        self._clients = context.clients
        self._gradually = context.slow_responses

    def routes(self) -> Iterator[Route]:
        yield Route(AskMembers, self.handle)

    def handle(self, call: Call[AskMembers]) -> None:
        """Request code 9031: return the members of many groups. Raises RequestRefused."""
        question = decode_body(MembersQuestion.decode, call.body)
        if len(question.groups) > GROUPS_MAX:
            raise _invalid(f"the request names {len(question.groups)} groups; maximum: {GROUPS_MAX}")
        if not question.groups and not question.differing:
            raise _invalid("the request names no groups: name some, or ask for those that differ")
        if not question.queues:
            self._gradually.work(call, self._answer(call, question))
        elif len(question.groups) != 1 or question.differing:
            raise _invalid("the queues of members can be asked for one group only")
        else:
            self._ask(call, question.groups[0])

    def _answer(self, call: Call[AskMembers], question: MembersQuestion) -> ResponseSteps:
        groups: dict[str, list[GroupMember]] = {}
        differing_groups: dict[str, list[GroupMember]] = {}
        count = 0
        for group in question.groups:
            if members := self._members(group, {}):
                groups[group] = members
                count += len(members)
                check_length(MEMBER_BYTES * count)
            yield
        for group in sorted(self._names()) if question.differing else ():
            if len(members := _one_of_each(self._members(group, {}))) > 1:
                assert len(members) <= DIFFERENT_MAX, f"{len(members)} members of {group} are told as examples"
                differing_groups[group] = members
                if len(differing_groups) == DIFFERING_MAX:
                    break
            yield
        return call.response(body=MembersOfGroups(groups=groups, differing=differing_groups).encode())

    def _names(self) -> set[str]:
        names = {group.name for group in self._clients.consumer_groups()}
        return names | {name for name, _ in self._clients.proxied_clients.counts()}

    def _members(self, group: str, running_infos: Mapping[ClientConnection, str]) -> list[GroupMember]:
        consumers = self._clients.consumer_group(group)
        own: Iterable[tuple[ClientConnection, Member]] = () if consumers is None else consumers.members.items()
        return [
            *(
                GroupMember(
                    client=connection_data(member, at),
                    subscribes="" if member.summary is None else member.summary.text,
                    running_info=running_infos.get(at),
                )
                for at, member in own
            ),
            *(
                GroupMember(client=proxied_data(client, at), subscribes=summary_text(client.subscriptions))
                for at, client in self._clients.proxied_clients.members(group)
            ),
        ]

    def _ask(self, call: Call[AskMembers], group: str) -> None:
        """Ask all members for their queues, and respond after the last of them."""
        consumers = self._clients.consumer_group(group)
        connections = [
            (at, member.client_id)
            for at, member in (() if consumers is None else consumers.members.items())
            if member.version >= RELAY_VERSION_MIN
        ]
        infos: dict[ClientConnection, str] = {}
        count, room = len(connections), QUEUES_BYTES_MAX

        def answer() -> None:
            members = self._members(group, infos)
            call.answer(call.response(body=MembersOfGroups(groups={group: members} if members else {}).encode()))

        def on_response(at: ClientConnection, response: Response | NoResponse, text: bytes) -> None:
            nonlocal count, room
            count -= 1
            assert count >= 0, f"{-count} members of {group} more than {len(connections)} have answered"
            is_answer = isinstance(response, Response) and response.code == ResponseCode.SUCCESS
            if is_answer and len(text) <= MEMBER_BYTES_MAX:
                info = text.decode("utf-8", "replace")
                if (nbytes := len(msgspec.json.encode(info))) <= room:  # six bytes for some of its bytes
                    room -= nbytes
                    infos[at] = info
            if not count:
                answer()

        assert count == len({at for at, _ in connections}), f"{count} members of {group} are asked, some of them twice"

        def ask() -> Generator[None, None, None]:
            for at, client_id in connections:
                yield  # not after the last one: if this is refused as too much, no second answer is sent
                fields = RunningInfoExt(consumer_group=group, client_id=client_id).fields()
                at.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, b"", ANSWER_SECONDS, partial(on_response, at))

        call.drop_body()
        if connections:
            self._gradually.work(call, ask())
        else:
            answer()


def _one_of_each(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Return the first member with each distinct subscription."""
    members_by_subscription: dict[str, GroupMember] = {}
    for each in members:
        if len(members_by_subscription) == DIFFERENT_MAX:
            break
        members_by_subscription.setdefault(each.subscribes, each)
    return [*members_by_subscription.values()]


def _invalid(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, why)
