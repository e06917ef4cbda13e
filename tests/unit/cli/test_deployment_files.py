"""What `deploy/` has for deployments: credentials that it makes, settings that its files name; and what is locked."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
import yaml

from mq.accounts import parse_accounts
from mq.broker.settings import BrokerSettings
from mq.certificate import Certificate
from mq.credentials import Credentials
from mq.namesrv.settings import NamesrvSettings
from mq.proxy.settings import ProxySettings
from mq.settings import ProcessSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
SCRIPT = DEPLOY / "make-credentials.sh"
SETTINGS: dict[str, type[ProcessSettings]] = {
    "BROKER": BrokerSettings,
    "NAMESRV": NamesrvSettings,
    "PROXY": ProxySettings,
}

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def made(directory: Path, *servers: str) -> list[str]:
    """The files that the script made."""
    done = subprocess.run([str(SCRIPT), str(directory), *servers], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix(f"raftmq: made {directory}/") for line in done.stdout.splitlines()]


@needs_openssl
def test_made_credentials_are_usable(tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    files = made(directory, "n0=127.0.0.1,broker.example", "namesrv=::1,*.names.example")
    assert {path.name for path in directory.iterdir()} == set(files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    accounts = parse_accounts((directory / "accounts.yml").read_text()).by_key
    roles = {key: (each.admin, each.broker, each.proxy) for key, each in accounts.items()}
    assert roles == {
        "raftmq-brokers": (False, True, False),
        "raftmq-proxy": (False, False, True),
        "operator": (True, False, False),
        "application": (False, False, False),
    }
    for name in ("brokers", "proxy", "operator", "application"):
        keys = Credentials.from_file(directory / f"{name}.toml")
        assert accounts[keys.access_key].signer.is_signed(keys.sign(103, {}, b"body"), b"body")
    assert re.fullmatch(r"[0-9a-f]{64}\n", (directory / "group.secret").read_text())
    for name, addresses in (("n0", ["127.0.0.1", "broker.example"]), ("namesrv", ["::1", "1.names.example"])):
        pem, key, ca = directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem"
        Certificate(pem, key, ca, structlog.get_logger("test"), lambda: 1_000_000_000_000)
        for address in addresses:
            kind = "-verify_ip" if address[-1].isdigit() else "-verify_hostname"
            check = ["openssl", "verify", "-x509_strict", "-CAfile", str(ca), kind, address, str(pem)]
            assert subprocess.run(check, capture_output=True, timeout=60).returncode == 0, address


@needs_openssl
def test_second_run_keeps_existing_certificates(tmp_path: Path) -> None:
    made(tmp_path, "n0=10.0.0.1")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made(tmp_path, "n0=10.0.0.1", "n1=10.0.0.2") == ["n1.key", "n1.pem"]
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: after[name] for name in before} == before


@needs_openssl
@pytest.mark.parametrize("server", ["n0", "n0=", "=10.0.0.1", "n0=a,,b", "n0=a b", "../n0=a", "ca=a", "n0=$(id)"])
def test_wrong_argument_prints_one_line_and_creates_no_files(tmp_path: Path, server: str) -> None:
    done = subprocess.run([str(SCRIPT), str(tmp_path / "c"), server], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert re.fullmatch(r"raftmq: .*\n", done.stderr)
    assert not (tmp_path / "c").exists()


def test_environment_variables_in_deployment_files_are_settings() -> None:
    paths = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("helm/raftmq/templates/*.yaml")]
    found = 0
    for path in paths:
        for kind, name in re.findall(r"\bRAFTMQ_(BROKER|NAMESRV|PROXY)_(\w+)", path.read_text()):
            found += 1
            assert name.lower() in SETTINGS[kind].model_fields, f"{path.name}: RAFTMQ_{kind}_{name}"
    assert found >= 50


@pytest.mark.parametrize("with_tls", [False, True])
def test_samples_for_systemd_are_valid_settings(tmp_path: Path, with_tls: bool) -> None:
    for name, settings in (("broker", BrokerSettings), ("namesrv", NamesrvSettings)):
        text = (DEPLOY / "systemd" / f"{name}.toml").read_text()
        if with_tls:
            text = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        loaded = settings.load(path)
        assert loaded.tls_mode == ("enforcing" if with_tls else "disabled")


def test_unit_is_not_restarted_with_settings_that_cannot_work() -> None:
    for unit in ("broker", "namesrv"):
        assert "\nRestartPreventExitStatus=2\n" in (DEPLOY / "systemd" / f"raftmq-{unit}.service").read_text()


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
def test_kubernetes_file_equals_the_rendered_chart() -> None:
    command = ["helm", "template", "raftmq", str(DEPLOY / "helm" / "raftmq")]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert (DEPLOY / "kubernetes" / "raftmq.yaml").read_text().endswith(rendered)


def start_of_a_pod(directory: Path) -> str:
    """What a pod of the Kubernetes file does before it runs the broker; returns the secret that the broker has then."""
    text = (DEPLOY / "kubernetes" / "raftmq.yaml").read_text()
    script = text.split("              set -eu\n", 1)[1].split("              number=", 1)[0]
    for path in ("/credentials/", "/data/"):
        script = script.replace(path, f"{directory}{path}")
    subprocess.run(["/bin/sh", "-euc", script], check=True, timeout=60)
    secret = directory / "data" / "group.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    return secret.read_text()


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """The directories of a pod that has never run."""
    for name in ("credentials", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "credentials" / "group.secret").write_text("first\n")
    return tmp_path


def test_pod_keeps_a_secret_that_was_changed_by_command(pod: Path) -> None:
    assert start_of_a_pod(pod) == "first\n"
    secret = pod / "data" / "group.secret"
    secret.write_text("second\nfirst\n")
    assert start_of_a_pod(pod) == "second\nfirst\n", "a restart does not bring the dropped secret back"
    assert start_of_a_pod(pod) == "second\nfirst\n"


def test_pod_takes_a_secret_that_was_changed_in_kubernetes(pod: Path) -> None:
    start_of_a_pod(pod)
    (pod / "credentials" / "group.secret").write_text("second\nfirst\n")
    assert start_of_a_pod(pod) == "second\nfirst\n"


def test_pod_of_an_earlier_chart_keeps_its_changed_secret(pod: Path) -> None:
    (pod / "data" / "group.secret").write_text("second\nfirst\n")
    (pod / "data" / "group.secret").chmod(0o600)
    assert start_of_a_pod(pod) == "second\nfirst\n"
    (pod / "credentials" / "group.secret").write_text("third\n")
    assert start_of_a_pod(pod) == "third\n"


EVERYTHING = "accounts.enabled=true,tls.enabled=true,proxy.replicas=2,serviceMonitor.enabled=true"


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
@pytest.mark.parametrize("values", ["broker.replicas=1", EVERYTHING])
def test_rendered_chart_is_valid_and_monitored(tmp_path: Path, values: str) -> None:
    command = ["helm", "template", "r", str(DEPLOY / "helm" / "raftmq"), "--set", values]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    documents = [each for each in yaml.safe_load_all(rendered) if each]
    if (validate := shutil.which("kubernetes-validate")) is not None:  # pip install kubernetes-validate
        path = tmp_path / "rendered.yaml"
        path.write_text(rendered)
        known = [validate, "--strict", str(path)]
        done = subprocess.run(known, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    services = [each for each in documents if each["kind"] == "Service"]
    monitors = [each["spec"] for each in documents if each["kind"] == "ServiceMonitor"]
    assert len(monitors) == ("serviceMonitor" in values)
    for monitor in monitors:
        wanted = monitor["selector"]["matchLabels"].items()
        chosen = [each for each in services if wanted <= each["metadata"]["labels"].items()]
        assert len(chosen) >= 2, "brokers and name servers"
        for endpoint in monitor["endpoints"]:
            for service in chosen:
                assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}, service["metadata"]


def test_installation_gets_the_hashes_of_the_lock(tmp_path: Path) -> None:
    installed = [
        {"metadata": {"name": "Ruamel.yaml_x"}, "download_info": {"url": "https://pypi.org/x.whl"}},
        {"metadata": {"name": "raftmq"}, "download_info": {"url": "file:///x", "dir_info": {}}},
    ]
    lock = "other==1 \\\n    --hash=sha256:00\nruamel-yaml-x==2 \\\n    --hash=sha256:11\n    # via y\nzlib-ng==1\n"
    report, path = tmp_path / "report", tmp_path / "lock"
    path.write_text(lock)
    command = [sys.executable, str(DEPLOY / "locked.py"), str(report), str(path)]
    report.write_text(json.dumps({"install": installed}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "ruamel-yaml-x==2 \\\n    --hash=sha256:11\n    # via y\n"
    report.write_text(json.dumps({"install": [{"metadata": {"name": "new"}, "download_info": {"url": "x"}}]}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "raftmq: the lock file lacks new\n"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-spark.lock"])
def test_lock_file_names_hashes_and_no_place(name: str) -> None:
    lock = (DEPLOY.parent / name).read_text()
    assert "://" not in lock, f"{name} must not say where packages come from"
    assert not re.search(r"^--(index|extra-index|find-links|trusted)", lock, re.MULTILINE), "options of one machine"
    pinned = re.findall(r"^[a-z0-9][\w.-]*==\S+ \\$", lock, re.MULTILINE)
    named = re.findall(r"^[a-z0-9][\w.-]*", lock, re.MULTILINE)
    assert pinned, f"{name} is empty"
    assert len(pinned) == len(named), "every requirement needs an exact version and hashes"


def test_scripts_are_executable() -> None:
    if not (DEPLOY.parent / ".git").exists():
        pytest.skip("not a git checkout: file modes may be lost")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "deploy/*.sh", ".ci/run"],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    breaches = [line for line in listed if not line.startswith("100755")]
    assert not breaches, "\n".join(breaches)
