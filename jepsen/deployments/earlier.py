"""Provides the earlier release, for runs that upgrade and downgrade brokers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import trio

from jepsen.deployments.cluster import ROOT

EARLIER = "61662b18"
"""The commit of the earlier release, as long as no release has a tag."""


def earlier_release() -> str:
    """Return the newest tag before this tree, or `EARLIER`."""
    process = _git("describe", "--tags", "--abbrev=0", "HEAD~1")
    return process.stdout.decode().strip() if process.returncode == 0 else EARLIER


def unavailable() -> str | None:
    """Return the reason that the earlier release is not available here, as text; None if it is."""
    release = earlier_release()
    if _git("cat-file", "-e", f"{release}^{{commit}}").returncode:
        return f"this checkout has no git history with {release}, the earlier release"
    return None


async def check_out_earlier(directory: Path) -> str:
    """Write the code of the earlier release into a new directory. Returns the name of the release.

    It runs with the libraries of this installation, and without compiled modules.

    Raises subprocess.CalledProcessError, OSError.
    """
    release = earlier_release()
    await trio.Path(directory).mkdir()
    archive = await trio.run_process(
        ["git", "archive", release, "mq", "raftlog"], capture_stdout=True, capture_stderr=True, cwd=ROOT
    )
    await trio.run_process(["tar", "-x", "-C", str(directory)], stdin=archive.stdout, capture_stderr=True)
    return release


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], capture_output=True, check=False, cwd=ROOT)
