"""Checks Spark's requirements on this machine, for programs that report them in one line."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_SECONDS_MAX: Final = 30


def missing() -> str | None:
    """Return a line that names the package to install first; None if nothing is missing."""
    if packages := [name for name in ("pyspark", "pyarrow", "pandas", "numpy") if not importlib.util.find_spec(name)]:
        return f"Spark needs the Python package {packages[0]}: pip install 'raftmq[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        state = f"{java} is not there"
    else:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_SECONDS_MAX)
        version = _VERSION.search(output.stderr + output.stdout)
        if version is not None and int(version[1]) >= JAVA_MIN:
            return None
        state = f"{java} is " + (f"Java {version[1]}" if version else "not Java")
    return f"Spark needs Java {JAVA_MIN} or later, {state}: apt install openjdk-17-jre-headless"
