"""Handles the requests to a name server: frames in, frames out, without sockets."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable
from typing import Any, Final

import structlog

from mq.accounts import Accounts
from mq.namesrv.access import denial
from mq.namesrv.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig, KvInvalid
from mq.namesrv.route_table import (
    LEADER_ID,
    UNIT_FLAG,
    UNIT_SUBSCRIBED_FLAG,
    BrokerId,
    NameTooLong,
    NameUnusual,
    RegisterResult,
    RouteTable,
    TableFull,
)
from mq.namesrv.running_config import ConfigForbidden, ConfigInvalid, RunningConfig
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError, HeaderError
from mq.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.messages.records import CRC_MASK
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.namesrv import (
    AddedTopicsReply,
    AddWritePermOfBroker,
    BrokerMemberGroup,
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnunitTopicList,
    GetKvConfig,
    GetKvlistByNamespace,
    GetNamesrvConfig,
    GetRouteinfoByTopic,
    GetSystemTopicListFromNs,
    GetTopicsByCluster,
    GetUnitTopicList,
    PutKvConfig,
    RegisterTopicInNamesrv,
    Route,
    UpdateNamesrvConfig,
    WipedTopicsReply,
    WipeWritePermOfBroker,
)
from mq.protocol.requests.registration import (
    BrokerExt,
    BrokerHeartbeat,
    QueryDataVersion,
    RegisterBroker,
    RegisterBrokerBody,
    RegistrationReply,
    UnregisterBroker,
)
from mq.protocol.requests.settings_text import decode_properties, encode_properties
from mq.protocol.requests.topics import DataVersion, TopicList
from mq.protocol.wire.encoding import ONEWAY_FLAG, encode_response
from mq.protocol.wire.request import Request

Log = structlog.stdlib.BoundLogger

_ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 8
_DENIAL_SECONDS: Final = 60.0
"""A denied request is logged so often at most, for each request code: anybody can send them by the thousand."""


class _ResponseContent:
    """The content of a response."""

    __slots__ = ("body", "code", "ext", "remark")

    def __init__(
        self,
        code: int = ResponseCode.SUCCESS,
        *,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.code = code
        self.remark = remark
        self.ext = ext
        self.body = body


class Handlers:
    """Handles all requests. ``clock`` returns monotonic seconds.

    ``accounts`` returns the accounts that may change something; None: every client may.

    Attributes:
        close_connection: closes a connection by its name.
    """

    def __init__(
        self,
        table: RouteTable,
        kv: KvConfig,
        config: RunningConfig,
        *,
        clock: Callable[[], float],
        log: Log,
        accounts: Callable[[], Accounts] | None = None,
    ) -> None:
        self._table = table
        self._accounts = accounts
        self._kv = kv
        self._config = config
        self._clock = clock
        self._log = log
        self._denied_count = 0
        self._denials_logged: dict[int, float] = {}  # by request code
        self.close_connection: Callable[[Hashable], None] = lambda connection: None
        self._by_type: Final[dict[type[Request], Callable[[Any, memoryview, Hashable], _ResponseContent]]] = {
            RegisterBroker: self._register_broker,
            UnregisterBroker: self._unregister_broker,
            QueryDataVersion: self._query_data_version,
            GetRouteinfoByTopic: self._route,
            GetBrokerClusterInfo: self._cluster_info,
            GetAllTopicListFromNameserver: self._topic_list,
            DeleteTopicInNamesrv: self._delete_topic,
            WipeWritePermOfBroker: self._wipe_write_perm,
            AddWritePermOfBroker: self._add_write_perm,
            PutKvConfig: self._put_kv,
            GetKvConfig: self._get_kv,
            DeleteKvConfig: self._delete_kv,
            GetKvlistByNamespace: self._kv_list,
            BrokerHeartbeat: self._heartbeat,
            GetBrokerMemberGroup: self._member_group,
            GetTopicsByCluster: self._topics_by_cluster,
            GetSystemTopicListFromNs: self._reserved_topics,
            GetUnitTopicList: self._unit_topics,
            GetHasUnitSubTopicList: self._unit_topics,
            GetHasUnitSubUnunitTopicList: self._unit_topics,
            RegisterTopicInNamesrv: self._register_topic,
            GetNamesrvConfig: self._get_config,
            UpdateNamesrvConfig: self._update_config,
        }

    @property
    def request_types(self) -> Collection[type[Request]]:
        """The types of requests that a name server serves."""
        return self._by_type.keys()

    def handle(self, serialization: int, header: memoryview, body: memoryview, connection: Hashable) -> bytes:
        """Serve one frame. Returns the frame to send; none for a one-way request, or if the frame is a response.

        Raises:
            FrameError: the peer does not speak the protocol; close the connection.
        """
        try:
            request = decode_header(serialization, header)
        except HeaderError as error:
            self._log.warning("bad_request", peer=connection, code=error.code, error=error.remark)
            return encode_response(
                error.opaque, ResponseCode.SYSTEM_ERROR, remark=error.remark, serialization=serialization
            )
        if isinstance(request, Response):
            # A name server sends no requests. RocketMQ's also logs such an answer and continues.
            self._log.debug("unexpected_response", peer=connection, code=request.code, opaque=request.opaque)
            return b""
        answer = self._denial(request, serialization, header, body, connection) or self._answer(
            request, body, connection
        )
        if len(answer.body) > _ANSWER_BYTES_MAX:
            answer = _ResponseContent(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the answer has {len(answer.body)} bytes, {_ANSWER_BYTES_MAX} fit into a frame",
            )
        if request.flag & ONEWAY_FLAG:
            return b""
        return encode_response(
            request.opaque,
            answer.code,
            remark=answer.remark,
            ext=answer.ext,
            body=answer.body,
            serialization=serialization,
        )

    def connection_closed(self, connection: Hashable) -> None:
        """Remove the brokers that registered over a closed connection."""
        for broker in self._table.connection_closed(connection):
            self._log.warning("broker_connection_closed", **_fields(broker))

    def expire(self) -> None:
        """Remove the brokers that were silent for too long."""
        for broker in self._table.expire(self._clock()):
            self._log.warning("broker_expired", **_fields(broker))

    def _denial(
        self,
        request: Request | UnknownRequest,
        serialization: int,
        header: memoryview,
        body: memoryview,
        connection: Hashable,
    ) -> _ResponseContent | None:
        """The answer to a request that its sender may not make; None if it may."""
        if self._accounts is None:
            return None
        address = str(connection).rpartition(":")[0]
        reason = denial(self._accounts(), request, serialization, header, body, address)
        if reason is None:
            return None
        self._denied_count += 1
        now = self._clock()
        if now >= self._denials_logged.get(request.code, float("-inf")) + _DENIAL_SECONDS:
            self._denials_logged[request.code] = now
            self._log.warning(
                "request_denied", peer=connection, code=request.code, reason=reason, denied=self._denied_count
            )
        return _ResponseContent(ResponseCode.NO_PERMISSION, remark=reason)

    def _answer(self, request: Request | UnknownRequest, body: memoryview, connection: Hashable) -> _ResponseContent:
        handler = None if isinstance(request, UnknownRequest) else self._by_type.get(type(request))
        if handler is None:
            self._log.info("request_not_supported", peer=connection, code=request.code)
            return _ResponseContent(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        try:
            return handler(request, body, connection)
        except (BodyError, TableFull, NameTooLong, NameUnusual, KvInvalid, ConfigInvalid, ConfigForbidden) as error:
            self._log.warning("request_refused", peer=connection, code=request.code, error=str(error))
            forbidden = isinstance(error, ConfigForbidden)
            return _ResponseContent(
                ResponseCode.NO_PERMISSION if forbidden else ResponseCode.SYSTEM_ERROR, remark=str(error)
            )

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _register_broker(self, request: RegisterBroker, body: memoryview, connection: Hashable) -> _ResponseContent:
        ext = request.ext
        if ext.body_crc32 != 0 and zlib.crc32(body) & CRC_MASK != ext.body_crc32:
            return _ResponseContent(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        registration = RegisterBrokerBody.decode(body, compressed=ext.compressed) if body else RegisterBrokerBody()
        broker = _broker(ext)
        result = self._table.register_broker(
            self._clock(),
            broker,
            registration,
            connection,
            ha_address=ext.ha_server_address,
            expiry_seconds=_seconds(ext.heartbeat_timeout_ms),
            whole=ext.whole,
        )
        if not result.accepted:
            self._log.warning("registration_ignored", **_fields(broker), reason="a newer broker has this id")
        order = self._kv.of_namespace(ORDER_TOPIC_NAMESPACE)
        return _ResponseContent(ext=_leader_fields(result), body=KVTable(dict(order)).encode() if order else b"")

    def _unregister_broker(self, request: UnregisterBroker, body: memoryview, connection: Hashable) -> _ResponseContent:
        broker = _broker(request.ext)
        registered_by = self._table.unregister_broker(broker)
        if registered_by is not None:
            self._log.info("broker_unregistered", **_fields(broker))
            if registered_by != connection:
                self.close_connection(registered_by)
        return _ResponseContent()

    def _query_data_version(
        self, request: QueryDataVersion, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        is_changed, version = self._table.query_data_version(
            self._clock(), _broker(request.ext), DataVersion.decode(body) if body else DataVersion()
        )
        return _ResponseContent(
            ext={"changed": "true" if is_changed else "false"}, body=b"" if version is None else version.encode()
        )

    def _heartbeat(self, request: BrokerHeartbeat, body: memoryview, connection: Hashable) -> _ResponseContent:
        ext = request.ext
        self._table.heartbeat(self._clock(), ext.address, _seconds(ext.heartbeat_timeout_millis))
        return _ResponseContent()

    # -- queries -------------------------------------------------------------------------------------------------------

    def _route(self, request: GetRouteinfoByTopic, body: memoryview, connection: Hashable) -> _ResponseContent:
        route = self._table.route(request.ext.topic)
        if route is None:
            return _ResponseContent(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {request.ext.topic}",
            )
        if self._config.order_topics:
            order = self._kv.get(ORDER_TOPIC_NAMESPACE, request.ext.topic)
            if order is not None:
                route.order_topic_conf = order
        return _ResponseContent(body=route.encode())

    def _cluster_info(self, request: GetBrokerClusterInfo, body: memoryview, connection: Hashable) -> _ResponseContent:
        return _ResponseContent(body=self._table.cluster_info().encode())

    def _topic_list(
        self, request: GetAllTopicListFromNameserver, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        return _ResponseContent(body=TopicList(self._table.topic_list()).encode())

    def _topics_by_cluster(
        self, request: GetTopicsByCluster, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        return _ResponseContent(body=TopicList(self._table.topic_list(request.ext.cluster)).encode())

    def _reserved_topics(
        self, request: GetSystemTopicListFromNs, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        names, address = self._table.reserved_topics()
        return _ResponseContent(body=TopicList(names, address).encode())

    def _unit_topics(
        self,
        request: GetUnitTopicList | GetHasUnitSubTopicList | GetHasUnitSubUnunitTopicList,
        body: memoryview,
        connection: Hashable,
    ) -> _ResponseContent:
        without = UNIT_FLAG if isinstance(request, GetHasUnitSubUnunitTopicList) else 0
        flag = UNIT_FLAG if isinstance(request, GetUnitTopicList) else UNIT_SUBSCRIBED_FLAG
        return _ResponseContent(body=TopicList(self._table.topics_with(flag=flag, without=without)).encode())

    def _member_group(self, request: GetBrokerMemberGroup, body: memoryview, connection: Hashable) -> _ResponseContent:
        members = self._table.member_group(request.ext.cluster, request.ext.broker_name)
        return _ResponseContent(body=BrokerMemberGroup(members).encode())

    # -- administration ------------------------------------------------------------------------------------------------

    def _register_topic(
        self, request: RegisterTopicInNamesrv, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        self._table.register_topic(request.ext.topic, Route.decode(body).queue_datas if body else ())
        self._log.info("topic_registered", topic=request.ext.topic, peer=connection)
        return _ResponseContent()

    def _delete_topic(self, request: DeleteTopicInNamesrv, body: memoryview, connection: Hashable) -> _ResponseContent:
        self._table.delete_topic(request.ext.topic, request.ext.cluster_name or None)
        self._log.info("topic_deleted", topic=request.ext.topic, peer=connection)
        return _ResponseContent()

    def _wipe_write_perm(
        self, request: WipeWritePermOfBroker, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        count = self._table.wipe_write_perm(request.ext.broker_name)
        self._log.info("write_perm_wiped", group=request.ext.broker_name, topics=count, peer=connection)
        return _ResponseContent(ext=WipedTopicsReply(wipe_topic_count=count).fields())

    def _add_write_perm(
        self, request: AddWritePermOfBroker, body: memoryview, connection: Hashable
    ) -> _ResponseContent:
        count = self._table.add_write_perm(request.ext.broker_name)
        self._log.info("write_perm_added", group=request.ext.broker_name, topics=count, peer=connection)
        return _ResponseContent(ext=AddedTopicsReply(add_topic_count=count).fields())

    def _put_kv(self, request: PutKvConfig, body: memoryview, connection: Hashable) -> _ResponseContent:
        self._kv.put(request.ext.namespace, request.ext.key, request.ext.value)
        return _ResponseContent()

    def _get_kv(self, request: GetKvConfig, body: memoryview, connection: Hashable) -> _ResponseContent:
        value = self._kv.get(request.ext.namespace, request.ext.key)
        if value is None:
            return _ResponseContent(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {request.ext.namespace} Key: {request.ext.key}",
            )
        return _ResponseContent(ext={"value": value})

    def _delete_kv(self, request: DeleteKvConfig, body: memoryview, connection: Hashable) -> _ResponseContent:
        self._kv.delete(request.ext.namespace, request.ext.key)
        return _ResponseContent()

    def _kv_list(self, request: GetKvlistByNamespace, body: memoryview, connection: Hashable) -> _ResponseContent:
        values = self._kv.of_namespace(request.ext.namespace)
        if values is None:
            return _ResponseContent(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {request.ext.namespace}"
            )
        return _ResponseContent(body=KVTable(dict(values)).encode())

    def _get_config(self, request: GetNamesrvConfig, body: memoryview, connection: Hashable) -> _ResponseContent:
        return _ResponseContent(body=encode_properties(self._config.properties()))

    def _update_config(self, request: UpdateNamesrvConfig, body: memoryview, connection: Hashable) -> _ResponseContent:
        properties = decode_properties(body)
        self._config.update(properties)
        self._log.info("config_changed", settings=sorted(properties), peer=connection)
        return _ResponseContent()


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds is not None and milliseconds > 0 else None


def _broker(ext: BrokerExt) -> BrokerId:
    return BrokerId(cluster=ext.cluster, group=ext.broker_name, broker_id=ext.broker_id, address=ext.address)


def _fields(broker: BrokerId) -> dict[str, object]:
    return {
        "cluster": broker.cluster,
        "group": broker.group,
        "broker_id": broker.broker_id,
        "address": broker.address,
        "leads": broker.broker_id == LEADER_ID,
    }


def _leader_fields(result: RegisterResult) -> dict[str, str] | None:
    if result.leader_address is None:
        return None
    reply = RegistrationReply(ha_server_address=result.leader_ha_address or "", leader_address=result.leader_address)
    return reply.fields()
