"""Says which files of the repository a distribution has, and compiles its Cython modules.

The pyproject.toml beside this file lists them. In the repository they are two directories up; in a source distribution,
which is built without the repository, beside this file: therefore each distribution has a copy, and a test holds
them equal. A wheel without a compiler at hand, or built with RAFTMQ_PURE_PYTHON, has no compiled modules and works
everywhere; RAFTMQ_REQUIRE_COMPILED makes that an error.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = frozenset({".py", ".pyi", ".pyx", ".pxi", ".pxd", ".typed", ".html", ".css", ".js", ".svg", ".java"})


class SourcesHook(BuildHookInterface):  # type: ignore[type-arg]
    """`sources` are files and directories, `without` what is left out of these, `compiled` packages with Cython."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build: add our files to it."""
        if version == "editable":
            return
        here = Path(self.root)
        top = here if (here / self.config["sources"][0]).exists() else here.parent.parent
        files = {str(top / each): each for each in sorted(self._files(top))}
        if self.target_name == "wheel" and self.config.get("compiled"):
            libraries = self._compile(top)
            files |= libraries
            if libraries:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
        build_data["force_include"].update(files)

    def _files(self, top: Path) -> Iterator[str]:
        without = {top / each for each in self.config.get("without", [])}
        for source in self.config["sources"]:
            path = top / source
            if not path.exists():
                raise FileNotFoundError(f"{path}: not there, but in the list of {self.root}/pyproject.toml")
            for each in path.rglob("*") if path.is_dir() else [path]:
                if each.suffix in SHIPPED and each.is_file() and each not in without:
                    yield each.relative_to(top).as_posix()

    def _compile(self, top: Path) -> dict[str, str]:
        """The compiled libraries, and where in the wheel they go; empty if there are none."""
        # Without its __init__, which imports what a broker needs at run time.
        sys.modules["raftlog"] = raftlog = ModuleType("raftlog")
        raftlog.__path__ = [str(top / "raftlog")]
        from raftlog.compiled.building import compile_package, missing_tool

        reason = "RAFTMQ_PURE_PYTHON is set" if os.environ.get("RAFTMQ_PURE_PYTHON") else missing_tool()
        libraries: dict[str, str] = {}
        if reason is None:
            self._libraries = tempfile.TemporaryDirectory(prefix="raftmq-")  # removed with this object
            try:
                for package in self.config["compiled"]:
                    to = Path(self._libraries.name, package)
                    to.mkdir(parents=True)
                    for library in compile_package(package.replace("/", "."), top / package, to=to):
                        libraries[str(library)] = f"{package}/{library.name}"
            except RuntimeError as error:
                reason, libraries = str(error), {}
        if reason is not None:
            if os.environ.get("RAFTMQ_REQUIRE_COMPILED"):
                raise RuntimeError(f"a wheel with compiled modules is required: {reason}")
            self.app.display_warning(f"raftmq-server without compiled modules, all is done in Python: {reason}")
        return libraries
