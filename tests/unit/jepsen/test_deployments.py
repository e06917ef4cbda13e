"""Deployments: rules and counters of networks, proxies that hold back, links of poor quality, disks that lose power."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio

from jepsen.deployments.disks import open_disks, unavailable
from jepsen.deployments.docker import Containers
from jepsen.deployments.local import open_loopback
from jepsen.deployments.netns import Networks, deaf_to, left_in, packets_counted
from jepsen.deployments.network import CLIENTS, NAME_SERVERS
from jepsen.deployments.packets import QUEUE_SECONDS_MAX, PacketPath, Shape
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
        await until(network.dropped_count, seconds=5)
        with trio.move_on_after(0.05) as waiting:
            await stream.receive_some()
        assert waiting.cancelled_caught, "n0 heard n1 although it has a grudge against it"

        await network.heal()
        assert await stream.receive_some() == b"two"
        assert await network.dropped_count() == 0
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
        await until(network.dropped_count, seconds=5)
        await stream.aclose()


@pytest.mark.parametrize("network", [Networks(5), Containers(5)], ids=["netns", "docker"])
def test_server_addresses_are_unique(network: Networks | Containers) -> None:
    names = [*(f"n{number}" for number in range(5)), *NAME_SERVERS]
    assert len({network.clients_reach(name)[0] for name in names}) == len(names)


def arrivals(shape: Shape) -> tuple[PacketPath, list[list[float]]]:
    """When each of many packets of 1,000 bytes arrives, sent one a millisecond."""
    link = PacketPath(shape)
    rng = Random(1)
    return link, [link.due(number * 0.001, 1000, rng) for number in range(2000)]


def test_link_without_faults_delivers_at_once_and_in_order() -> None:
    link, came = arrivals(Shape())
    assert came == [[number * 0.001] for number in range(2000)]
    assert not link.counts


def test_dropped_packets_never_arrive() -> None:
    link, came = arrivals(Shape(loss=0.2))
    lost = sum(not each for each in came)
    assert 300 < lost < 500
    assert link.counts["lost"] == lost


def test_duplicates_arrive_twice() -> None:
    link, came = arrivals(Shape(duplicate=0.1))
    assert sum(len(each) == 2 for each in came) == link.counts["duplicated"] > 100


def test_jitter_stays_within_its_bounds_and_changes_the_order() -> None:
    _, came = arrivals(Shape(delay=0.05, jitter=0.02))
    delays = [each[0] - number * 0.001 for number, each in enumerate(came)]
    assert 0.0299 <= min(delays) < max(delays) <= 0.0701
    assert [each[0] for each in came] != sorted(each[0] for each in came)


def test_reordered_packets_overtake_delayed_packets() -> None:
    link, came = arrivals(Shape(delay=0.05, reorder=0.25))
    assert sum(each[0] == number * 0.001 for number, each in enumerate(came)) == link.counts["reordered"] > 300


def test_low_rate_delays_and_drops_packets() -> None:
    link, came = arrivals(Shape(rate=100_000.0))  # ten times as much is sent
    arrived = [each[0] for each in came if each]
    assert all(b - a >= 0.0099 for a, b in pairwise(arrived))
    assert link.counts["lost"] > 1000
    assert max(at - number * 0.001 for number, each in enumerate(came) for at in each) <= QUEUE_SECONDS_MAX + 0.011


def test_large_packets_vanish() -> None:
    link = PacketPath(Shape(large=600))
    assert link.due(0.0, 600, Random(1)) == [0.0]
    assert link.due(0.0, 601, Random(1)) == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(unavailable() is not None, reason=f"no disks here: {unavailable()}")
async def test_power_cut_loses_unsynced_data_and_keeps_synced_files(tmp_path: Path) -> None:
    async with open_disks(tmp_path, ("n0",)) as disks:
        data = disks["n0"].point / "data"
        data.mkdir()
        (data / "kept").write_bytes(b"kept")
        await disks["n0"].unmount()  # writes everything
        await disks["n0"].mount()
        (data / "lost").write_bytes(bytes(1000))
        lost = await disks["n0"].lose_power()
        assert (lost.unsynced_gone, lost.synced_kept) == (True, True)
        assert not (data / "lost").exists() or (data / "lost").stat().st_size == 0
    assert (tmp_path / "n0" / "kept").read_bytes() == b"kept"
    assert not disks["n0"].image.exists(), "images of a gigabyte must not stay"
