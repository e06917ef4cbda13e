"""Accounts through a proxy: it acts as the user who has signed the call, and can do nothing else."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from mq.client import Admin, BrokerError, Message, Producer, SendRejected
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.credentials import Credentials
from mq.client.users import UserAdmin
from mq.protocol.access.acting import ActsFor
from mq.protocol.codes import RequestCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.users import PolicyEntryInfo, UserInfo
from mq.proxy.mapping.handles import TransactionId
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit, open_kit
from tests.support.proxies import ENDPOINTS, GATEWAY, InMemoryProxy, open_proxy, signed
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: gateway, secretKey: gateway-secret, proxy: true}
- {accessKey: another, secretKey: another-secret, topicPerms: [Orders=PUB]}
- accessKey: orders-service
  secretKey: orders-secret
  topicPerms: [Orders=PUB|SUB]
  groupPerms: [billing=SUB]
"""
OPERATOR = RemotingSettings(credentials=Credentials("operator", "operator-secret"), tls=None)


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    """Brokers with these accounts, and topics Orders and Secrets."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with open_kit(acl_file=file) as kit, Admin(kit.namesrv, remoting=OPERATOR) as admin:
        await admin.create_topic("Orders", 1)
        await admin.create_topic("Secrets", 1)
        yield kit


@pytest.fixture
async def proxy(kit: Kit) -> AsyncIterator[InMemoryProxy]:
    """Its clients must sign their calls."""
    async with open_proxy(kit, GATEWAY) as proxy:
        yield proxy


async def test_proxy_acts_as_the_user_of_its_client(kit: Kit, proxy: InMemoryProxy) -> None:
    proxy.metadata = signed("orders-service", "orders-secret", kit.now())
    assert (await proxy.send("Orders", "one")).status.code == pb.OK
    assert (await proxy.send("Secrets", "two")).status.code == pb.FORBIDDEN
    _, [got] = await proxy.receive("billing", "Orders")
    assert (await proxy.acknowledge("billing", got)).status.code == pb.OK
    assert (await proxy.receive("spies", "Orders"))[0].code == pb.FORBIDDEN
    assert (await proxy.receive("billing", "Secrets"))[0].code == pb.FORBIDDEN
    assert kit.messages("Secrets") == []


async def test_quota_of_a_user_applies_through_a_proxy(kit: Kit, proxy: InMemoryProxy) -> None:
    async with UserAdmin(kit.namesrv, remoting=OPERATOR) as users:
        await users.put_quota("orders-service", Quota(produce_messages=2))
        proxy.metadata = signed("orders-service", "orders-secret", kit.now())
        start, codes = trio.current_time(), Counter[int]()
        for _ in range(12):
            codes[(await proxy.send("Orders", "one")).status.code] += 1
        seconds = trio.current_time() - start
        assert codes.keys() <= {pb.OK, pb.TOO_MANY_REQUESTS}
        assert len(kit.messages("Orders")) == codes[pb.OK] <= 2 * seconds + 4
        assert seconds >= 3
        [found] = (await users.quotas()).values()
        assert [(each.kind, each.name) for each in found.throttled] == [("user", "orders-service")]
        own = replace(OPERATOR, credentials=Credentials("another", "another-secret"))
        async with Producer(kit.namesrv, remoting=own) as another:
            for _ in range(20):
                await another.send(Message("Orders", b"two"))
        [found] = (await users.quotas()).values()
        assert [each.name for each in found.throttled] == ["orders-service"]


async def test_time_of_a_signature_may_have_the_form_of_rfc_3339(kit: Kit, proxy: InMemoryProxy) -> None:
    """As the client for Rust writes it, with the zone of its machine and nanoseconds."""
    for form in ("%Y-%m-%dT%H:%M:%S.%f123Z", "%Y-%m-%dT%H:%M:%S+00:00", "%Y-%m-%dT%H:%M:%SZ"):
        proxy.metadata = signed("orders-service", "orders-secret", kit.now(), form)
        assert (await proxy.send("Orders", "one")).status.code == pb.OK, form


async def test_requests_without_a_fresh_valid_signature_are_refused(kit: Kit, proxy: InMemoryProxy) -> None:
    right = signed("orders-service", "orders-secret", kit.now())
    wrong = {
        "no signature": {},
        "another key": signed("orders-service", "guessed-secret", kit.now()),
        "unknown user": signed("somebody", "orders-secret", kit.now()),
        "the proxy's own user": signed("gateway", "gateway-secret", kit.now()),
        "too old": signed("orders-service", "orders-secret", kit.now() - dt.timedelta(seconds=310)),
        "by a clock ahead": signed("orders-service", "orders-secret", kit.now() + dt.timedelta(seconds=310)),
        "another time": right | {"x-mq-date-time": f"{kit.now() + dt.timedelta(seconds=9):%Y%m%dT%H%M%SZ}"},
        "no zone": signed("orders-service", "orders-secret", kit.now(), "%Y-%m-%dT%H:%M:%S"),
        "a day": signed("orders-service", "orders-secret", kit.now(), "%Y-%m-%d"),
        "no time": right | {"x-mq-date-time": "yesterday"},
        "another algorithm": right | {"authorization": "Basic b3JkZXJzOm9yZGVycw=="},
    }
    for why, metadata in wrong.items():
        proxy.metadata = metadata
        assert (await proxy.send("Orders", "one")).status.code == pb.UNAUTHORIZED, why
        assert (await proxy.receive("billing", "Orders"))[0].code == pb.UNAUTHORIZED, why
        route = pb.QueryRouteRequest(topic=pb.Resource(name="Orders"), endpoints=ENDPOINTS)
        assert (await proxy.ask("QueryRoute", route, pb.QueryRouteResponse)).status.code == pb.UNAUTHORIZED, why
        async with proxy.telemetry("c1", pb.Settings(client_type=pb.PRODUCER)) as (_, answer):
            assert answer.status.code == pb.UNAUTHORIZED, why
    assert kit.messages("Orders") == []
    proxy.metadata = right
    assert (await proxy.send("Orders", "one")).status.code == pb.OK


async def test_signature_refusal_names_the_clock_skew(kit: Kit, proxy: InMemoryProxy) -> None:
    for seconds in (-290, 290):
        at = kit.now() + dt.timedelta(seconds=seconds)
        proxy.metadata = signed("orders-service", "orders-secret", at)
        assert (await proxy.send("Orders", "one")).status.code == pb.OK, seconds
    for seconds, told in ((-400, " s ago"), (400, " s from now")):
        at = kit.now() + dt.timedelta(seconds=seconds)
        proxy.metadata = signed("orders-service", "orders-secret", at)
        refused = (await proxy.send("Orders", "one")).status
        assert (refused.code, told in refused.message) == (pb.UNAUTHORIZED, True), refused.message


async def test_client_signing_local_time_gets_the_remedy(kit: Kit, proxy: InMemoryProxy) -> None:
    for minutes, zone in ((8 * 60, "+08:00"), (5 * 60 + 30, "+05:30"), (-9 * 60, "-09:00")):
        local = kit.now() + dt.timedelta(minutes=minutes, seconds=20)
        proxy.metadata = signed("orders-service", "orders-secret", local)
        refused = (await proxy.send("Orders", "one")).status
        assert refused.code == pb.UNAUTHORIZED
        assert f"signature_utc_offsets={zone} for the proxy" in refused.message
    for minutes in (-30, 15 * 60, 8 * 60 + 7):
        proxy.metadata = signed("orders-service", "orders-secret", kit.now() + dt.timedelta(minutes=minutes))
        refused = (await proxy.send("Orders", "one")).status
        assert (refused.code, "is the clock of the client right?" in refused.message) == (pb.UNAUTHORIZED, True)


async def test_clients_may_sign_the_time_of_an_allowed_zone(kit: Kit) -> None:
    shanghai = dt.timedelta(hours=8)
    async with open_proxy(kit, GATEWAY, utc_offsets_ms=(8 * 3_600_000,)) as lenient:
        for shift, form, accepted in (
            (shanghai, "%Y%m%dT%H%M%SZ", True),
            (dt.timedelta(0), "%Y%m%dT%H%M%SZ", True),
            (shanghai - dt.timedelta(seconds=400), "%Y%m%dT%H%M%SZ", False),
            (dt.timedelta(hours=7), "%Y%m%dT%H%M%SZ", False),
            (shanghai, "%Y-%m-%dT%H:%M:%S+00:00", False),  # it says its zone
        ):
            lenient.metadata = signed("orders-service", "orders-secret", kit.now() + shift, form)
            code = (await lenient.send("Orders", "one")).status.code
            assert code == (pb.OK if accepted else pb.UNAUTHORIZED), (shift, form)


async def test_routes_and_transaction_ends_require_a_topic_permission(kit: Kit, proxy: InMemoryProxy) -> None:
    proxy.metadata = signed("orders-service", "orders-secret", kit.now())
    transaction = TransactionId("broker-a", QueueOffset(0), PhysicalOffset(0), "id").encode()

    async def codes(topic: str) -> list[int]:
        name, group = pb.Resource(name=topic), pb.Resource(name="billing")
        route = pb.QueryRouteRequest(topic=name, endpoints=ENDPOINTS)
        assignment = pb.QueryAssignmentRequest(topic=name, group=group, endpoints=ENDPOINTS)
        end = pb.EndTransactionRequest(topic=name, transaction_id=transaction, resolution=pb.COMMIT)
        return [
            (await proxy.ask("QueryRoute", route, pb.QueryRouteResponse)).status.code,
            (await proxy.ask("QueryAssignment", assignment, pb.QueryAssignmentResponse)).status.code,
            (await proxy.ask("EndTransaction", end, pb.EndTransactionResponse)).status.code,
        ]

    assert await codes("Orders") == [pb.OK, pb.OK, pb.INTERNAL_SERVER_ERROR]  # there is no such transaction
    assert await codes("Secrets") == [pb.FORBIDDEN] * 3
    # A permission to send is enough to learn the queues.
    proxy.metadata = signed("another", "another-secret", kit.now())
    assert (await codes("Orders"))[0] == pb.OK


async def test_policies_of_users_apply_to_the_address_of_the_client(kit: Kit, proxy: InMemoryProxy) -> None:
    near = PolicyEntryInfo(resource="Topic:Orders", actions=["Pub"], decision="Allow", source_ips=["192.0.2.0/24"])
    far = PolicyEntryInfo(resource="Topic:Secrets", actions=["Pub"], decision="Allow", source_ips=["10.0.0.0/8"])
    async with UserAdmin(kit.namesrv, remoting=OPERATOR) as users:
        shop = UserInfo(name="shop", password="shop-secret", user_type="Normal")
        await trio.sleep(2)  # the format level of the group rises
        await users.create_user(shop)
        await users.put_policies("shop", [near, far])
    proxy.metadata = signed("shop", "shop-secret", kit.now())
    assert (await proxy.send("Orders", "one")).status.code == pb.OK
    assert (await proxy.send("Secrets", "two")).status.code == pb.FORBIDDEN


async def test_proxy_account_alone_may_not_send_or_administer(kit: Kit) -> None:
    own = RemotingSettings(credentials=GATEWAY, tls=None)
    async with Producer(kit.namesrv, remoting=own) as producer:
        with pytest.raises(SendRejected, match="names no user"):
            await producer.send(Message("Orders", b"one"))
    async with Admin(kit.namesrv, remoting=own) as gateway:
        with pytest.raises(BrokerError, match="names no user"):
            await gateway.delete_topic("Orders")
    user = signed("operator", "operator-secret", kit.now())
    acting = ActsFor("operator", user["x-mq-date-time"], user["authorization"].rpartition("=")[2], "192.0.2.7").fields()
    another = RemotingSettings(credentials=Credentials("another", "another-secret"), tls=None)
    for settings, code, why in (
        (own, RequestCode.DELETE_TOPIC_IN_BROKER, "not allowed through a proxy"),
        (another, RequestCode.CHECK_CLIENT_CONFIG, "not an account of a proxy"),
    ):
        async with ClientCore.open(parse_addresses(kit.namesrv), settings=settings) as core:
            address = (await core.route("Orders")).leader_address("broker-a")
            with pytest.raises(BrokerError, match=why):
                await core.call(address or "", code, {"topic": "Orders", **acting})
    assert kit.messages("Orders") == []


async def test_client_of_another_user_with_the_same_id_is_another_client(kit: Kit, proxy: InMemoryProxy) -> None:
    right = signed("orders-service", "orders-secret", kit.now())
    others = [signed("another", "another-secret", kit.now()), {}]
    proxy.metadata = right
    await proxy.send("Orders", "one")
    _, [_] = await proxy.receive("billing", "Orders", auto_renew=True)
    for proxy.metadata in others:
        leave = pb.NotifyClientTerminationRequest(group=pb.Resource(name="billing"))
        await proxy.ask("NotifyClientTermination", leave, pb.NotifyClientTerminationResponse)
    proxy.metadata = right
    assert proxy.table.renewals.count == 1
    assert (await proxy.receive("billing", "Orders", client="c2"))[0].code == pb.MESSAGE_NOT_FOUND
    # The client of the message is silent from now on, whoever else uses its id.
    for _ in range(12):
        proxy.metadata = others[0]
        heartbeat = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
        await proxy.ask("Heartbeat", heartbeat, pb.HeartbeatResponse)
        await trio.sleep(10)
    assert proxy.table.renewals.count == 0
