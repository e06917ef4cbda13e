"""A look at stock clients with every run of all tests, where their tools and all that they need are there already.

All scenarios with all clients: `make interop`.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.interop.all_clients import CLIENTS
from tests.interop.clients import BuildFailed
from tests.interop.run import main

pytestmark = [pytest.mark.process, pytest.mark.slow]


@cache
def why_not(name: str) -> str | None:
    """Why a client cannot be tried here; else None, and it is built."""
    client = CLIENTS[name]
    if (why := client.missing()) is not None:
        return why
    try:
        client.build(offline=True)
    except BuildFailed as error:
        return f"cannot be built without fetching: {str(error).splitlines()[0]}"
    return None


@pytest.mark.parametrize(
    ("name", "scenario", "security"),
    [
        ("java4", "push", "none"),
        pytest.param("java5", "tags", "none", marks=pytest.mark.nightly),
        ("java4", "refused", "acl"),
        ("java5", "unencrypted", "tls"),
    ],
)
def test_stock_client_sends_and_receives(name: str, scenario: str, security: str) -> None:
    if (why := why_not(name)) is not None:
        pytest.skip(why)
    assert main([name, scenario, "--no-build", "--security", security]) == 0
