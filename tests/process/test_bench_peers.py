"""A turn of `make bench-peers`, as small as it can be: it runs, its figures are possible, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.__main__ import PEERS, parse_arguments, prepare
from benchmarks.peers.samples import LOADS
from benchmarks.peers.turns import PeerResults, measure

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]


def left_in(directory: Path) -> list[str]:
    """Files, and processes that were told to use the directory."""
    found = [str(path) for path in directory.iterdir()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if str(directory).encode() in command:
            found.append(command.decode().replace("\0", " "))
    return found


@pytest.mark.parametrize("name", ["raftmq", "nats", "etcd"])
async def test_bench_measures_one_turn_of_each_system(name: str, tmp_path: Path) -> None:
    outcome, args = PeerResults(), parse_arguments(["--quick", "--peer", name])
    args.seconds, args.first_warmup = 0.3, 0.3
    if (reason := prepare(PEERS[name], outcome)) is not None:
        pytest.skip(reason)
    await measure([PEERS[name]], tmp_path, args=args, outcome=outcome, say=lambda _: None, keep=lambda _: None)
    measured = outcome.measured[name]
    assert not measured.failures
    assert set(measured.samples) == {load.name for load in LOADS if load.batch == 1 or PEERS[name].has_batches}
    for samples in measured.samples.values():
        assert all(each.messages_per_second > 0 and each.servers_us > 0 for each in samples)
    assert measured.resident_mib[0] >= measured.anonymous_mib[0] > 0
    assert not left_in(tmp_path)
