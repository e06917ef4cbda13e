"""The codes that clients of the gRPC protocol get for invalid requests and for errors of brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mq.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    MessageRefused,
    NoRoute,
    RequestTimeout,
    SendOutcomeUnknown,
    SendRejected,
    TopicNotFound,
)
from mq.client.message import SendStatus
from mq.protocol.access.acting import NOT_AUTHENTICATED
from mq.protocol.codes import ResponseCode
from mq.proxy.wire import messaging_pb2 as pb

OK: Final = pb.Status(code=pb.OK, message="OK")

_BY_BROKER_CODE: Final[dict[int, pb.Code]] = {
    ResponseCode.SUCCESS: pb.OK,
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: pb.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.INVALID_PARAMETER: pb.BAD_REQUEST,
    ResponseCode.MESSAGE_ILLEGAL: pb.BAD_REQUEST,
    ResponseCode.QUERY_NOT_FOUND: pb.OFFSET_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: pb.ILLEGAL_OFFSET,
    ResponseCode.LMQ_QUOTA_EXCEEDED: pb.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
"""The code for a client by a broker's refusal; any other is an INTERNAL_SERVER_ERROR, as in RocketMQ's proxy."""

_BY_SEND_STATUS: Final = {
    SendStatus.OK: pb.OK,
    SendStatus.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
    SendStatus.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
}


class CodedError(Exception):
    """Refuses a request, or one entry of it, with `code`; the client gets `reason`."""

    def __init__(self, code: pb.Code, reason: str) -> None:
        super().__init__(f"{pb.Code.Name(code)}: {reason}")
        self.code = code
        self.reason = reason

    @property
    def status(self) -> pb.Status:
        """The refusal as a status in an answer."""
        return pb.Status(code=self.code, message=self.reason)


def refusal_of(error: ClientError) -> CodedError:
    """Convert an error of the connection to the brokers to the refusal that a client gets."""
    code: pb.Code
    match error:
        case BrokerError() | SendRejected():
            code = _BY_BROKER_CODE.get(error.code, pb.INTERNAL_SERVER_ERROR)
            if code == pb.FORBIDDEN and (error.remark or "").startswith(NOT_AUTHENTICATED):
                code = pb.UNAUTHORIZED
        case TopicNotFound():
            code = pb.TOPIC_NOT_FOUND
        case MessageRefused():
            code = pb.BAD_REQUEST
        case RequestTimeout() | SendOutcomeUnknown() | NoRoute() | ConnectFailed() | ConnectionLost():
            code = pb.PROXY_TIMEOUT
        case _:
            code = pb.INTERNAL_SERVER_ERROR
    return CodedError(code, str(error))


def of_send_status(status: SendStatus) -> pb.Status:
    """Convert the status of a message that a broker has stored."""
    code = _BY_SEND_STATUS[status]
    return pb.Status(code=code, message=pb.Code.Name(code))


def together(statuses: Iterable[pb.Status]) -> pb.Status:
    """Combine the statuses of the entries to the status of their answer."""
    codes = {status.code: status for status in statuses}
    if len(codes) == 1:
        [status] = codes.values()
        return status
    return pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")
