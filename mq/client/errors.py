"""Errors of the SDK, by their meaning for the caller.

Every class answers one question: could the broker have stored something? `stored` is "no" if the operation certainly
did not happen and "unknown" if it may have. A successful send returns a `SendResult`, never an error.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any, ClassVar, Literal, TypeVar

from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.send_outcome import judge_send
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.compression import Codec, CodecMissing

Stored = Literal["no", "unknown"]

_UNSUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _code_text(codes: type[IntEnum], code: int) -> str:
    """Return the number, and RocketMQ's name for it, if any."""
    return f"{code} {codes(code).name}" if code in codes.__members__.values() else str(code)


class ClientError(Exception):
    """Base of all exceptions of this package. `stored` says whether the operation may have taken effect."""

    stored: Stored = "no"


ErrorT = TypeVar("ErrorT", bound=ClientError)


def copy_of(error: ErrorT) -> ErrorT:
    """Copy an error: each task that raises it adds its own traceback."""
    own = error.__class__.__new__(error.__class__)
    own.args = error.args
    own.__dict__.update(error.__dict__)
    own.__cause__ = error.__cause__
    return own


class ClientClosed(ClientError):
    """The client was closed, or never opened."""


class ClientForked(ClientClosed):
    """The client was opened in `process`, of which this process is a fork. Nothing was sent; it still works there.

    It may be opened here as well, as another client.
    """

    def __init__(self, name: str, process: int) -> None:
        super().__init__(
            f"this {name} was opened in process {process}, and process {os.getpid()}, which was forked from it, cannot "
            "share its connections: open a client after the fork, in each process (gunicorn: post_fork, Celery: "
            "worker_process_init, multiprocessing: initializer), or call open() here"
        )
        self.process = process


class CodecNotInstalled(ClientError):
    """A message is compressed with `codec`, whose library is not installed. The message stays at the broker, unread.

    Consumers wait at such a message, and say in the log what to install.
    """

    def __init__(self, error: CodecMissing) -> None:
        super().__init__(str(error))
        self.codec: Codec = error.codec


class BodyNotDecoded(ClientError):
    """The codec cannot decode the body of `message`; `message.raw_body` has the bytes. The broker keeps the message.

    A handler does not get such a message: it becomes a dead letter, unless `on_error` says otherwise.
    """

    def __init__(self, message: Any, reason: str) -> None:
        super().__init__(f"cannot decode the body by {reason}; message {message}")
        self.message: ReceivedMessage[bytes] = message
        self.reason = reason


class AlreadyOpen(ClientError):
    """The client is already open, or is being opened or closed; or `run` and another `run` or a loop would read one
    consumer at the same time. Nothing has changed.
    """


class NotADeadLetter(ClientError):
    """No broker confirmed that it stored the message as a dead letter. One may have stored it all the same."""

    stored: Stored = "unknown"

    def __init__(self, message: object) -> None:
        super().__init__(f"no broker took {message} as a dead letter")


class MessageRefused(ClientError):
    """The message violates a limit of the protocol. It was not sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProducerBusy(ClientError):
    """`limit` messages are in flight or wait for replies. Nothing was sent."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} messages are in flight already")
        self.limit = limit


class ConnectFailed(ClientError):
    """The connection to `address` could not be opened. Nothing was sent."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection ended before the answer arrived.

    `sent` is False if the request had not been written to the socket yet: then it certainly did not happen.
    """

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent
        self.stored = "unknown" if sent else "no"


class RequestTimeout(ClientError):
    """`address` did not answer request `code` within `seconds`. A later answer is ignored."""

    stored: Stored = "unknown"

    def __init__(self, address: str, code: int, seconds: float) -> None:
        super().__init__(f"no answer from {address} to request {_code_text(RequestCode, code)} within {seconds:g} s")
        self.address = address
        self.code = code
        self.seconds = seconds


class BrokerError(ClientError):
    """A broker or name server answered with a code other than success.

    `stored` is "unknown" for codes that do not tell whether the request was executed, above all SYSTEM_ERROR.
    """

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        hint = (
            "; is it a server of the other kind (broker, name server), or an older one?" if code == _UNSUPPORTED else ""
        )
        super().__init__(f"{address} answered code {_code_text(ResponseCode, code)}: {remark or 'no remark'}{hint}")
        self.code = code
        self.remark = remark
        self.address = address
        self.stored = "no" if judge_send(code, remark).stored == "no" else "unknown"


class TransactionFenced(ClientError):
    """Another transaction, or a commit of the group, has consumed messages that this transaction consumed.

    It is rolled back as a whole: its messages are not visible, and no offset has moved. Another consumer has the queue
    by now, or this transaction was committed before and is being repeated. A pull consumer continues at the group's
    offset.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the transaction is rolled back: {reason}")
        self.reason = reason


class TransactionOutcomeUnknown(ClientError):
    """The outcome of the transaction with this id is unknown: it was committed, rolled back, or is still open.

    An open one is ended by `check_set`; without that it is rolled back. A pull consumer returns the messages again; if
    they were consumed after all, the next transaction with them raises TransactionFenced.
    """

    stored: Stored = "unknown"

    def __init__(self, transaction_id: str, reason: str) -> None:
        super().__init__(f"the outcome of transaction {transaction_id} is unknown: {reason}")
        self.transaction_id = transaction_id
        self.reason = reason


class NotRecalled(BrokerError):
    """No waiting message has this handle; `remark` is the broker's explanation.

    It was delivered, is being delivered, was recalled before, or was never stored.
    """


class UnreadableAnswer(ClientError):
    """The server's answer violates the protocol. The request may have been executed."""

    stored: Stored = "unknown"

    def __init__(self, what: str) -> None:
        super().__init__(f"unreadable answer: {what}")


class NameServersUnavailable(ClientError):
    """No name server answered. `reasons` has one line for each; `hint` says what to do."""

    def __init__(self, reasons: dict[str, str], hint: str = "") -> None:
        text = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        super().__init__(f"no name server answered: {text}" + (f"; {hint}" if hint else ""))
        self.reasons = reasons


class TopicNotFound(ClientError):
    """The name servers know neither the topic nor a template from which to create it."""

    def __init__(self, topic: str, hint: str = "") -> None:
        super().__init__(f"topic {topic} does not exist" + (f"; {hint}" if hint else ""))
        self.topic = topic


class NoRoute(ClientError):
    """The topic exists, but no broker can serve the request now; often because no leader is elected yet."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"no broker for topic {topic}: {reason}" if topic else reason)
        self.topic = topic
        self.reason = reason


class NoReply(ClientError):
    """The message `message_id` is stored, but no reply came within `seconds`. A consumer may still handle it."""

    stored: Stored = "unknown"

    def __init__(self, seconds: float, message_id: str) -> None:
        super().__init__(f"no reply to message {message_id} within {seconds:g} s")
        self.seconds = seconds
        self.message_id = message_id


class NotARequest(ClientError):
    """The sender of this message does not wait for a reply, or the message does not name the cluster to reply to."""

    def __init__(self, message: ReceivedMessage[Any]) -> None:
        super().__init__(f"{message} wants no reply")
        self.message = message


class ReplyNotDelivered(ClientError):
    """No broker could deliver the reply: the requester is disconnected or silent. The reply topic may have it."""

    stored: Stored = "unknown"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the reply was not delivered: {reason}")
        self.reason = reason


class OffsetsFileDamaged(ClientError):
    """The offsets file is damaged. If you remove it, the consumer starts anew, and repeats or misses messages."""


class DeliveryFinished(ClientError):
    """The delivery was acknowledged or returned before. The second call had no effect."""

    def __init__(self, message: ReceivedMessage[Any], outcome: Literal["acknowledged", "given back"]) -> None:
        super().__init__(f"{message} was {outcome} before")
        self.message = message
        self.outcome = outcome


class _SendFailed(ClientError):
    """The base of both kinds of failed sends; catch `ClientError` instead and check `stored`."""

    prefix: ClassVar[str]

    def __init__(self, reason: str, queue: MessageQueue | None, attempts: int) -> None:
        where = f"queue {queue.broker_name}/{queue.queue_id} of {queue.topic}" if queue else "no queue"
        count = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"{self.prefix} ({where}, {count}): {reason}")
        self.reason = reason
        self.queue = queue
        self.attempts = attempts


class SendRejected(_SendFailed):
    """A broker refused the message with response code `code`, and no attempt had an unknown outcome. The message is
    certainly not stored.
    """

    prefix = "refused, certainly not stored"

    def __init__(self, code: int, remark: str | None, queue: MessageQueue | None, attempts: int = 1) -> None:
        super().__init__(f"code {_code_text(ResponseCode, code)}: {remark or 'no remark'}", queue, attempts)
        self.code = code
        self.remark = remark


class NumberUsed(SendRejected):
    """Another process has used this message's number of a numbered producer: the message is certainly not stored.

    Another process uses its producer id, or the clock was ahead when the id was used before.
    """

    def __init__(self, remark: str, queue: MessageQueue | None, attempts: int = 1) -> None:
        super().__init__(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{remark}. Another process uses this producer id, or the clock was ahead when the id was used before: "
            "give the producer another id, or numbered=True for a new one each time, or a first_number above all that "
            "were used",
            queue,
            attempts,
        )


class SendOutcomeUnknown(_SendFailed):
    """A broker may have stored the message, once per attempt: after a timeout, a lost connection or an unclear answer.

    `message_id` is the UNIQ_KEY of all attempts: `Admin.messages_by_key(topic, message_id, unique=True)` finds the
    message, and consumers can recognize duplicates by it.
    """

    prefix = "outcome unknown, may be stored"
    stored: Stored = "unknown"

    def __init__(self, reason: str, queue: MessageQueue | None, attempts: int = 1, message_id: str = "") -> None:
        super().__init__(reason, queue, attempts)
        self.message_id = message_id
