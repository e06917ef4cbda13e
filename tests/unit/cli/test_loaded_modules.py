"""Commands load no more than they need: with all modules of a broker, each would take a third of a second longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDED_BY_SERVERS = ("mq.broker", "mq.namesrv", "mq.proxy", "raftlog", "prometheus_client")


@pytest.mark.parametrize("module", ["status", "topics", "dead_letters"])
def test_command_loads_no_server(module: str) -> None:
    program = f"import sys, mq.cli.entry_point, mq.cli.logs, mq.cli.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith(NEEDED_BY_SERVERS)}
    assert loaded == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "jepsen.clients",
        "jepsen.deployments.object_storage",
        "jepsen.deployments.switch",
        "mq.cli.proxy_process",
        "mq.monitoring.probe",
        "mq.proxy.grpc.self_signed",
        "mq.store.archive.worker",
        "mq.store.key_index.builder",
    ],
)
def test_each_program_module_can_be_imported_first(module: str) -> None:
    """Other tests fork it from an interpreter that has imported everything, where no circle of imports would show."""
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
