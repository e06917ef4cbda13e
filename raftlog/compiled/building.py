"""Compiles the Cython modules of a package for this interpreter, beside their sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Final

from raftlog.compiled.sources import source_sha256

_BUILD: Final = """
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension, setup

package, directory, build, sha256, optimization = sys.argv[1:]
extensions = [
    Extension(
        f"{package}.{source.stem}",
        [str(source)],
        extra_compile_args=[optimization],
        define_macros=[("SOURCE_SHA256", f'"{sha256}"')],
    )
    for source in sorted(Path(directory).glob("*.pyx"))
]
root = str(Path(directory).parents[package.count(".")])
modules = cythonize(extensions, build_dir=build, include_path=[root, directory], quiet=True, language_level=3)
setup(script_args=["-q", "build_ext", "--build-lib", build, "--build-temp", build], ext_modules=modules)
"""


def missing_tool() -> str | None:
    """Name a tool that is needed to compile and missing, and how to get it; None if none is missing."""
    if sys.byteorder != "little":
        return "the compiled parts are for little-endian processors"
    try:
        import_module("Cython")
        import_module("setuptools")
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'cython>=3.1,<4' setuptools"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}: apt install gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"{header} is missing: apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return None


def compile_package(package: str, directory: Path, *, to: Path | None = None, optimization: str = "-O2") -> list[Path]:
    """Compile all modules of ``package``. Writes the libraries beside the sources in ``directory``, or into ``to``.

    Each ``.pyx`` file becomes a module; it may include ``.pxi`` files, and import from ``.pxd`` files, of the same
    directory. Returns the libraries, which are in place then. ``optimization`` is the compiler's option for it.

    Raises RuntimeError with what the compiler said; OSError if the directory cannot be written.
    """
    names = sorted(path.stem for path in directory.glob("*.pyx"))
    # Beside the sources: a rename puts a library in place, also while another process compiles or a broker runs.
    to = to or directory
    with tempfile.TemporaryDirectory(prefix="build-", dir=to) as build:
        result = subprocess.run(
            [sys.executable, "-c", _BUILD, package, str(directory), build, source_sha256(directory), optimization],
            capture_output=True,
            text=True,
            check=False,
            cwd=build,
        )
        paths = [path for name in names for path in Path(build, *package.split(".")).glob(f"{name}.*.so")]
        if result.returncode or len(paths) != len(names):
            raise RuntimeError(f"could not compile {directory}:\n{result.stdout}{result.stderr}")
        # A process that runs keeps the old ones.
        return [path.replace(to / path.name) for path in paths]
