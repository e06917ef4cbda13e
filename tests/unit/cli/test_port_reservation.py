"""Processes that choose ports at the same time never choose the same one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mq.local_cluster.port_reservation import BLOCK_PORTS, METRICS_ABOVE, NoFreePorts, OwnPorts
from mq.local_cluster.ports import GROUP_PORTS, Ports

FIRST = 11_200
"""Below the ports from which everybody else takes."""


@contextmanager
def own_ports(blocks: int) -> Iterator[OwnPorts]:
    """Those of a process that may have so many blocks, from FIRST on."""
    ports = OwnPorts(FIRST, FIRST + blocks * BLOCK_PORTS)
    try:
        yield ports
    finally:
        ports.release()


@contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


def test_processes_choose_different_ports_before_listening() -> None:
    code = "from tests.free_ports import free_ports; print(*free_ports(60), *free_ports(60), flush=True); input()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        chosen = [port for child in children if child.stdout for port in child.stdout.readline().split()]
    finally:
        for child in children:
            child.communicate("\n", timeout=60)
    assert len(chosen) == len(set(chosen)) == 360


def test_ended_process_releases_its_ports() -> None:
    code = "from mq.local_cluster.port_reservation import OwnPorts;"
    code += f"print(OwnPorts({FIRST}, {FIRST + BLOCK_PORTS}).reserve(3))"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert int(done.stdout) == FIRST


def test_child_of_a_fork_takes_other_ports_than_its_parent() -> None:
    with own_ports(2) as ports:
        parent = ports.reserve(1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, str(ports.reserve(1)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert abs(int(os.read(reading, 100)) - parent) == BLOCK_PORTS
        os.close(reading)
        os.close(writing)


def test_ports_are_used_in_turn_and_never_twice_at_once() -> None:
    with own_ports(2) as ports:
        taken = [ports.reserve(30) for _ in range(6)]
        assert all(abs(one - other) >= 30 for one in taken for other in taken if one != other)
        assert len(set(taken)) == 6
        assert [ports.reserve(30) for _ in range(6)] == taken


@pytest.mark.parametrize("above", [0, METRICS_ABOVE])
def test_ports_in_use_are_skipped(above: int) -> None:
    with listening(FIRST + 1 + above), own_ports(1) as ports:
        assert ports.reserve(3) == FIRST + 2


def test_missing_free_ports_error_names_count_and_range() -> None:
    refusal = rf"60 in a row\) were found from {FIRST} to {FIRST + BLOCK_PORTS - 1}"
    with listening(FIRST + 50), own_ports(1) as ports, pytest.raises(NoFreePorts, match=refusal):
        ports.reserve(60)
    with own_ports(1) as ports, own_ports(1) as others:
        ports.reserve(1)
        with pytest.raises(NoFreePorts):
            others.reserve(1)


def test_groups_get_ports_in_blocks_that_follow_each_other() -> None:
    with own_ports(4) as ports:
        first = ports.reserve(7, blocks=3)
        assert first in (FIRST, FIRST + BLOCK_PORTS)
        left = ports.reserve(7)
        assert (left - first) // BLOCK_PORTS in (-1, 3)
        with pytest.raises(NoFreePorts, match=f"7 in a row, 2 times {GROUP_PORTS} apart"):
            ports.reserve(7, blocks=2)


def test_ports_of_a_group_are_distinct() -> None:
    ports = Ports.free(3)
    assert len({ports.namesrv, *ports.clients, *ports.replication}) == 7
