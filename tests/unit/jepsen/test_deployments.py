"""Networks of deployments: rules and counters of namespaces, and proxies that hold back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from jepsen.deployments.docker import Containers
from jepsen.deployments.local import open_loopback
from jepsen.deployments.netns import Networks, deaf_to, left_in, packets_counted
from jepsen.deployments.network import CLIENTS, NAME_SERVERS
from mq.local_cluster import HOST
from tests.support.waiting import until

LISTING = b"""{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "rmqf"}},
 {"rule": {"chain": "in", "expr": [{"match": {}}, {"counter": {"packets": 30, "bytes": 1800}}, {"drop": null}]}},
 {"rule": {"chain": "out", "expr": [{"counter": {"packets": 7, "bytes": 420}}, {"drop": null}]}}]}"""


def test_packets_of_all_rules_are_added() -> None:
    assert packets_counted(LISTING) == 37


def test_listing_without_rules_counts_nothing() -> None:
    assert packets_counted(b'{"nftables": [{"metainfo": {"version": "1.0.6"}}]}') == 0


def test_firewall_rules_name_the_muted_nodes() -> None:
    assert "ip saddr { 10.78.0.1, 10.78.0.3 } counter drop" in deaf_to(["10.78.0.3", "10.78.0.1"])


def test_cleanup_finds_namespaces_of_interrupted_runs(tmp_path: Path) -> None:
    for name in ("rmqf-n0", "rmqf-n4", "rmqf-ns1", "somebody-else"):
        (tmp_path / name).touch()
    assert left_in(tmp_path) == ["rmqf-n0", "rmqf-n4", "rmqf-ns1"]
    assert left_in(tmp_path / "missing") == []


async def _echo(stream: trio.SocketStream) -> None:
    async for piece in stream:
        await stream.send_all(piece)


async def test_fault_proxy_pauses_and_resumes_one_direction() -> None:
    async with open_loopback(2) as network, trio.open_nursery() as nursery:
        port = network.replicates("n1")[1]
        await nursery.start(partial(trio.serve_tcp, _echo, port, host=HOST))
        stream = await trio.open_tcp_stream(*network.peer("n0", "n1"))
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"

        await network.drop({"n0": frozenset({"n1"})})
        await stream.send_all(b"two")
        await until(network.dropped, seconds=5)
        with trio.move_on_after(0.05) as waiting:
            await stream.receive_some()
        assert waiting.cancelled_caught, "n0 heard n1 although it has a grudge against it"

        await network.heal()
        assert await stream.receive_some() == b"two"
        assert await network.dropped() == 0
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_brokers_reach_themselves_directly_and_others_through_proxies() -> None:
    async with open_loopback(3) as network:
        assert network.peer("n0", "n0") == network.replicates("n0")
        assert network.peer("n0", "n1") != network.replicates("n1")
        assert network.peer("n0", "n1") != network.peer("n2", "n1")
        assert network.clients_reach("n0") != network.listens("n0")
        assert (CLIENTS, "n0") in network.links


async def test_caller_of_a_dead_broker_is_disconnected() -> None:
    async with open_loopback(2) as network:
        stream = await trio.open_tcp_stream(*network.clients_reach("n1"))
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
        await stream.aclose()


async def test_each_broker_has_its_own_link_to_each_name_server() -> None:
    async with open_loopback(2) as network:
        ways = {network.registers_at(node, name) for node in ("n0", "n1") for name in NAME_SERVERS}
        ways |= {network.clients_reach(name) for name in NAME_SERVERS}
        assert len(ways) == 6
        await network.drop({"ns0": frozenset({"n0"})})
        stream = await trio.open_tcp_stream(*network.registers_at("n0", "ns0"))
        await until(network.dropped, seconds=5)
        await stream.aclose()


@pytest.mark.parametrize("network", [Networks(5), Containers(5)], ids=["netns", "docker"])
def test_server_addresses_are_unique(network: Networks | Containers) -> None:
    names = [*(f"n{number}" for number in range(5)), *NAME_SERVERS]
    assert len({network.clients_reach(name)[0] for name in names}) == len(names)
