"""Passes questions of operators on to members of consumer groups (request codes 307 and 309).

The proxy answers the questions that it can. Only the client knows the stacks of its threads, and what it makes of one
message: it is asked over its telemetry stream.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from mq.client.consume.diagnostics import running_info
from mq.client.errors import ClientError
from mq.client.net.connection import RespondLater
from mq.client.net.replies import received_messages
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.clients import SubscriptionData
from mq.protocol.requests.relayed import ConsumeMessageDirectly, ConsumeResult, GetConsumerRunningInfo
from mq.protocol.wire.encoding import encode_response
from mq.proxy.clients import Clients, TelemetryStream, TooManyQuestions
from mq.proxy.grpc.status import BrokenCall
from mq.proxy.mapping.incoming import message_of
from mq.proxy.mapping.refusals import OK
from mq.proxy.wire import messaging_pb2 as pb

ANSWER_SECONDS: Final = 8.0
"""A broker waits for 10 s."""
QUESTIONS_IN_ALL_MAX: Final = 256
_STACKS_LENGTH_MAX: Final = 512 * 1024
"""Characters of the stacks of a client; a longer text is cut."""
_RESULTS: Final = {
    pb.OK: "CR_SUCCESS",
    pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    pb.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""The result for the code with which a client answers; any other code is an exception to the tools of RocketMQ."""

Log = structlog.stdlib.BoundLogger
Question = GetConsumerRunningInfo | ConsumeMessageDirectly


class _NoAnswer(Exception):
    """The client did not answer; the message says why."""


class MemberQuestions:
    """Answers brokers' questions about the clients behind this proxy.

    Args:
        nursery: of the tasks that outlive a call.
    """

    def __init__(self, clients: Clients, nursery: trio.Nursery, log: Log) -> None:
        self._clients = clients
        self._nursery = nursery
        self._log = log
        self._open = 0

    def respond(self, question: Question, body: memoryview, respond_later: RespondLater) -> bytes | None:
        """Start to answer a broker's question about a client; see `mq.client.net.connection.OnServerRequest`."""
        if self._open >= QUESTIONS_IN_ALL_MAX:
            return encode_response(question.opaque, ResponseCode.SYSTEM_BUSY, remark="too many questions to clients")
        self._open += 1
        self._nursery.start_soon(self._respond, question, bytes(body), respond_later)
        return None

    async def _respond(self, question: Question, body: bytes, respond_later: RespondLater) -> None:  # noqa: ASYNC910 - answers at once what the client need not be asked
        ext = question.ext
        try:
            stream = self._clients.member(ext.consumer_group, ext.client_id or "")
            if stream is None:
                raise _NoAnswer(f"no client {ext.client_id} of the group {ext.consumer_group} is connected")
            if isinstance(question, GetConsumerRunningInfo):
                response = await _running_info(stream, stacks=question.ext.stack)
            else:
                response = (await _consume(stream, question, body)).encode()
        except (_NoAnswer, TooManyQuestions, BrokenCall, ClientError, ValueError) as error:
            self._log.info("client_not_asked", client=ext.client_id, group=ext.consumer_group, reason=str(error))
            respond_later(encode_response(question.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error)))
        else:
            respond_later(encode_response(question.opaque, ResponseCode.SUCCESS, body=response))
        finally:
            self._open -= 1


async def _running_info(stream: TelemetryStream, *, stacks: bool) -> bytes:
    member, settings = stream.member, stream.settings
    assert member is not None, "a stream of a member without a member"
    stack_text = ""
    if stacks:
        response = await stream.ask(_print_stacks, ANSWER_SECONDS)
        stack_text = "the client did not answer" if response is None else response.thread_stack_trace.thread_stack_trace
    return running_info(  # noqa: ASYNC910 - without stacks the client need not be asked
        (),
        [
            SubscriptionData(topic=topic, expression=expression, expression_type=kind)
            for topic, expression, kind in member.subscriptions
        ],
        ordered=settings is not None and settings.subscription.fifo,
        started_ms=stream.opened_ms,
        version="" if settings is None else settings.user_agent.version,
        consume_type=member.consume_type,
        stacks=stack_text[:_STACKS_LENGTH_MAX],
    )


async def _consume(stream: TelemetryStream, question: ConsumeMessageDirectly, body: bytes) -> ConsumeResult:
    """Let a client handle a message, whose state does not change. Raises ClientError, ValueError: not a message."""
    [received_message] = received_messages(question.ext.broker_name or "", memoryview(body))
    message = message_of(received_message, received_message.topic)
    began = trio.current_time()

    def verify(nonce: str) -> pb.TelemetryCommand:
        command = pb.VerifyMessageCommand(nonce=nonce, message=message)
        return pb.TelemetryCommand(status=OK, verify_message_command=command)

    response = await stream.ask(verify, ANSWER_SECONDS)
    if response is None:
        raise _NoAnswer(f"the client {stream.client_id} has not handled the message within {ANSWER_SECONDS:g} s")
    code = response.status.code
    remark = response.status.message or ("" if code in _RESULTS else f"the client answers {_name(code)}")
    return ConsumeResult(
        consume_result=_RESULTS.get(code, "CR_THROW_EXCEPTION"),
        order=stream.settings is not None and stream.settings.subscription.fifo,
        remark=remark,
        spent_ms=round(1000 * (trio.current_time() - began)),
    )


def _print_stacks(nonce: str) -> pb.TelemetryCommand:
    command = pb.PrintThreadStackTraceCommand(nonce=nonce)
    return pb.TelemetryCommand(status=OK, print_thread_stack_trace_command=command)


def nonce_of_response(command: pb.TelemetryCommand) -> str | None:
    """Return the nonce of the question that a client's command answers; None if it answers none.

    The client for Node.js refuses to verify a message by sending the command back.
    """
    kind = command.WhichOneof("command")
    if kind in ("thread_stack_trace", "verify_message_result", "verify_message_command"):
        nonce: str = getattr(command, kind).nonce
        return nonce
    return None


def _name(code: int) -> str:
    return pb.Code.Name(code) if code in pb.Code.values() else str(code)
