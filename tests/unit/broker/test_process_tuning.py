"""How many file descriptors of a broker are for its clients."""

from __future__ import annotations

import resource

import pytest

from mq.broker.base.process_tuning import allow_descriptors


@pytest.mark.parametrize(("allowed", "for_clients"), [(128, 96), (1024, 768), (20_000, 19_488)])
def test_a_broker_with_few_descriptors_serves_clients_all_the_same(
    monkeypatch: pytest.MonkeyPatch, allowed: int, for_clients: int
) -> None:
    """A broker with small segment files has more than 64 files open by itself, and hung up on everybody with 128."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (allowed, allowed))
    assert allow_descriptors() == for_clients
