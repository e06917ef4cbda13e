"""Source distributions of installed packages, whose own tests are run against this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest


def unpacked(package: str, directory: Path) -> Path:
    """The unpacked sources of the installed version; pip keeps the archive in its cache. Skips the test without a
    package index.
    """
    wanted = f"{package}=={version(package)}"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*download, "--no-build-isolation", "--dest", str(directory), wanted],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"no package index has the sources of {wanted}: {done.stderr.strip().splitlines()[-1:]}")
    [archive] = directory.glob(f"{package}-*.tar.gz")
    shutil.unpack_archive(archive, directory)
    return next(path for path in directory.glob(f"{package}-*") if path.is_dir())
