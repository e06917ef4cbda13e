"""``python -m mq.compiled``: compile the optional parts of the data path for this interpreter, beside their sources.

Needs Cython, setuptools, a C compiler and the headers of Python. Exit code 0 when the compiled parts are there, 3 when
something is missing; then everything stays as it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path

from mq.compiled import IS_COMPILED, source_sha256

NOT_COMPILED = 3
_SOURCES = Path(__file__).parent
_MODULE = "plain_sends"


def missing_tool() -> str | None:
    """What is missing to compile, and how to get it; None if nothing is."""
    if sys.byteorder != "little":
        return "the compiled parts are for little-endian processors"
    try:
        import_module("Cython")
        import_module("setuptools")
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'raftmq[compiled]'"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}: apt install gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"{header} is missing: apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return None


def compile_all() -> Path:
    """Compile; returns the library, which is in place then.

    Raises RuntimeError with what the compiler said; OSError if the directory of the sources cannot be written.
    """
    # Beside the sources: a rename puts the library in place, also while another process compiles or a broker runs.
    with tempfile.TemporaryDirectory(prefix="build-", dir=_SOURCES) as name:
        script = (
            "from Cython.Build import cythonize; from setuptools import Extension, setup; import sys; "
            "name, source, build, sha256 = sys.argv[1:]; "
            "macros = [('SOURCE_SHA256', '\"' + sha256 + '\"')]; "
            "extension = Extension(name, [source], extra_compile_args=['-O2'], define_macros=macros); "
            "setup(script_args=['-q', 'build_ext', '--build-lib', build, '--build-temp', build], "
            "ext_modules=cythonize([extension], build_dir=build, quiet=True, language_level=3))"
        )
        source = _SOURCES / f"{_MODULE}.pyx"
        result = subprocess.run(
            [sys.executable, "-c", script, f"mq.compiled.{_MODULE}", str(source), name, source_sha256(source)],
            capture_output=True,
            text=True,
            check=False,
            cwd=name,
        )
        built = sorted(Path(name).glob(f"mq/compiled/{_MODULE}.*.so"))
        if result.returncode or len(built) != 1:
            raise RuntimeError(f"could not compile {source}:\n{result.stdout}{result.stderr}")
        target = _SOURCES / built[0].name
        built[0].replace(target)  # a process that runs keeps the old one
        return target


def main() -> int:
    """Compile, and say what came of it in one line."""
    kept = "the compiled data path stays as it is" if IS_COMPILED else "the data path stays in Python"
    missing = missing_tool()
    if missing is not None:
        print(f"raftmq: {kept}: {missing}")
        return NOT_COMPILED
    try:
        target = compile_all()
    except (RuntimeError, OSError) as error:
        print(f"raftmq: {kept}: {error}", file=sys.stderr)
        return NOT_COMPILED
    print(f"raftmq: compiled {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
