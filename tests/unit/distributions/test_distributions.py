"""What each distribution has and needs, read from the files from which they are built. `make dist-check` tries them."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from distributions.measured import Measured, section

ROOT = Path(__file__).parents[3]
OTHERS = ("server", "spark")
SHIPPED = (".py", ".pyi", ".pyx", ".pxi", ".pxd", ".typed")
ONLY_ON_UNIX = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
FOR_TESTS = {"mq/pytest_plugin.py", "raftmq/testing.py"}
"""The client has them to say what to install; pytest imports the first."""
ONLY_IN_A_CHECKOUT = {"spark/demo.py", "spark/demo_iceberg.py", "spark/demo_job.py", "spark/demo_table.py"}


def project(name: str) -> dict[str, Any]:
    directory = ROOT if name == "client" else ROOT / "distributions" / name
    with (directory / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {path for path in listed.stdout.split() if path.endswith(SHIPPED) and (ROOT / path).exists()}


def client_files() -> set[str]:
    build = project("client")["tool"]["hatch"]["build"]
    return tracked(*build["only-include"]) - tracked(*(each.removeprefix("/") for each in build["exclude"]))


def other_files(name: str) -> set[str]:
    hook = project(name)["tool"]["hatch"]["build"]["hooks"]["custom"]
    return tracked(*hook["sources"]) - set(hook.get("without", ()))


def names(requirements: list[str]) -> set[str]:
    """The projects that are needed in any environment; not those of extras."""
    return {re.split(r"[^\w-]", each)[0].lower() for each in requirements if "extra ==" not in each}


def needed_by(requirement: str) -> set[str]:
    found = names(list(requires(requirement) or ()))
    return found.union(*(needed_by(each) for each in found if not each.startswith("exceptiongroup")))


def test_client_needs_five_distributions_at_most() -> None:
    direct = names(project("client")["project"]["dependencies"])
    assert direct == {"anyio", "msgspec"}
    everything = direct.union(*(needed_by(each) for each in direct))
    assert len(everything - {"exceptiongroup"}) <= 5, "exceptiongroup is for Python 3.10"


def test_every_file_is_in_one_distribution() -> None:
    everywhere = tracked("mq", "raftlog", "raftmq", "spark", "pyspark_raftmq.py") - ONLY_IN_A_CHECKOUT
    parts = [client_files(), *(other_files(name) for name in OTHERS)]
    assert set().union(*parts) == everywhere
    assert sum(map(len, parts)) == len(everywhere)


def test_client_has_two_names_at_its_top_level() -> None:
    assert {path.partition("/")[0] for path in client_files()} == {"mq", "raftmq"}
    assert not {path for path in other_files("server") if path.partition("/")[0] not in ("mq", "raftlog")}


def test_all_distributions_have_one_version() -> None:
    client = project("client")["project"]
    version = client["version"]
    extras = client["optional-dependencies"]
    for name in OTHERS:
        other = project(name)["project"]
        assert other["version"] == version
        assert other["requires-python"] == client["requires-python"]
        assert f"raftmq[lz4,zstd]=={version}" in other["dependencies"]
        assert extras[name] == [f"raftmq-{name}=={version}"]
    assert extras["testing"] == extras["server"]
    assert extras["s3"] == [f"raftmq-server[s3]=={version}"]
    assert extras["compiled"] == [f"raftmq-server[compiled]=={version}"]


@pytest.mark.parametrize("name", ["LICENSE", "hatch_build.py"])
def test_copies_in_distributions_are_equal(name: str) -> None:
    contents = [(ROOT / "distributions" / each / name).read_bytes() for each in OTHERS]
    assert set(contents) == {contents[0]}
    if (ROOT / name).exists():
        assert contents[0] == (ROOT / name).read_bytes()


NEED_AN_EXTRA = {"raftmq.taskiq": "taskiq", "raftmq.faststream": "faststream", "raftmq.dramatiq": "dramatiq"}
"""Modules of the client that need more than the client has, and the extra that brings it."""
NEEDS_CELERY = "mq.celery.beat"
"""A scheduler of Celery's beat: only Celery imports it."""

IMPORT_ALL = """
import importlib, sys

modules, allowed = sys.argv[1].split(), set(sys.argv[2].split())

class OnlyTheClient:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed and (top not in ("mq", "raftmq") or name in modules):
            return None
        raise ModuleNotFoundError(f"the client does not have {name}", name=name)

sys.meta_path.insert(0, OnlyTheClient())
for module in modules:
    importlib.import_module(module)
print(len(modules))
"""


def test_client_imports_only_its_dependencies() -> None:
    needed = {"anyio", "msgspec", "idna", "sniffio", "typing_extensions", "mq", "raftmq", *sys.stdlib_module_names}

    def import_all(modules: list[str], *allowed: str) -> str:
        command = [sys.executable, "-c", IMPORT_ALL, " ".join(modules), " ".join([*needed, *allowed])]
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
        assert result.stdout == ("" if result.stderr else f"{len(modules)}\n")
        return result.stderr

    files = {path for path in client_files() if path.endswith(".py")} - FOR_TESTS
    modules = sorted(path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files)
    modules = [module for module in modules if not module.startswith((*NEED_AN_EXTRA, NEEDS_CELERY))]
    without_kombu = [module for module in modules if not module.startswith(("mq.celery", "raftmq.celery"))]
    assert len(without_kombu) > 100
    assert import_all(without_kombu) == ""
    assert import_all(modules, "kombu", "amqp", "vine", "packaging", "tzdata", "dateutil", "six") == ""
    assert "ImportError: raftmq.celery needs kombu: pip install 'raftmq[celery]'" in import_all(
        ["raftmq", "mq", *without_kombu, "raftmq.celery"]
    )


def test_missing_extra_error_names_the_package() -> None:
    for module, extra in NEED_AN_EXTRA.items():
        source = f"import sys; sys.modules[{extra!r}] = None; import {module}"
        result = subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, text=True, cwd=ROOT)
        assert result.stderr.endswith(f"pip install 'raftmq[{extra}]'\n")


def nodes_elsewhere(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those in a block for other systems than Windows."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "sys.platform != 'win32'":
            continue
        yield node
        yield from nodes_elsewhere(node)


def test_client_imports_no_modules_of_unix() -> None:
    """What they stand for is found by mypy below, which knows what `os` and `socket` lack elsewhere."""
    imported = {}
    for path in client_files():
        if path.endswith(".py"):
            for node in nodes_elsewhere(ast.parse((ROOT / path).read_text())):
                if isinstance(node, ast.Import):
                    imported.update(dict.fromkeys((each.name for each in node.names), path))
                elif isinstance(node, ast.ImportFrom):
                    imported[node.module or ""] = path
    assert "socket" in imported
    assert not {name: path for name, path in imported.items() if name.partition(".")[0] in ONLY_ON_UNIX}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_client_uses_nothing_that_platform_lacks(platform: str, tmp_path: Path) -> None:
    parts = ["raftmq", "mq.client", "mq.protocol", "mq.filter"]
    modules = ["mq.durable_files", "mq.command"]
    options = ["--config-file=", "--strict", f"--platform={platform}", f"--cache-dir={tmp_path}"]
    arguments = [*(f"--package={each}" for each in parts), *(f"--module={each}" for each in modules)]
    command = [sys.executable, "-m", "mypy", *options, *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_command_without_servers_names_the_package(tmp_path: Path) -> None:
    for path in ("mq/__init__.py", "mq/command.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    result = subprocess.run(
        [sys.executable, "-S", "-m", "mq.command", "status"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    said = "raftmq: only the client is installed; for the command: pip install 'raftmq[server]'\n"
    assert (result.returncode, result.stdout, result.stderr) == (3, "", said)


def test_raftmq_command_runs_with_the_server_package() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mq.command", "--version"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout == f"raftmq {project('client')['project']['version']}\n"


def test_hook_ships_every_kind_of_file_in_its_sources() -> None:
    """The filter server compiles Java sources that lie beside it; a wheel without them could not."""
    hook = runpy.run_path(str(ROOT / "distributions" / "server" / "hatch_build.py"))
    for name in OTHERS:
        sources = project(name)["tool"]["hatch"]["build"]["hooks"]["custom"]["sources"]
        listed = subprocess.run(["git", "ls-files", *sources], cwd=ROOT, check=True, capture_output=True, text=True)
        kinds = {Path(each).suffix for each in listed.stdout.split()} - {".proto"}  # compiled already
        assert kinds <= hook["SHIPPED"], f"{name} leaves out {sorted(kinds - hook['SHIPPED'])}"


def test_client_figures_are_a_table_with_a_column_for_each_python() -> None:
    steps = {"Python": (9 << 20, 4 << 20), "raftmq": (27 << 20, 16 << 20)}
    measured = [Measured(version, 6_500_000, {"import mq.client": 0.0625}, steps) for version in ("3.11.2", "3.13.0")]
    lines = section(measured, "a machine", 1.5).splitlines()
    assert "Load average before: 1.5." in lines[0]
    assert lines[3:] == [
        "| CPython | 3.11.2 | 3.13.0 |",
        "|---|---:|---:|",
        "| installed, MB | 6.5 | 6.5 |",
        "| `import mq.client` with the start of Python, s of CPU | 0.062 | 0.062 |",
        "| a client that is open and idle on asyncio, MiB resident | 27.0 | 27.0 |",
        "| - of it anonymous: a second process shares the rest | 16.0 | 16.0 |",
        "| - of it Python | 9.0 | 9.0 |",
        "| - of it raftmq | 18.0 | 18.0 |",
    ]
