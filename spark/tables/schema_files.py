"""The schema files of a pipeline: read by relative paths, checked, and kept in the pipeline, so that executors need no
file.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from spark.tables.avro_bodies import NO_NUMBER, AvroBodies
from spark.tables.bodies import SchemaUnusable
from spark.tables.column_types import ColumnType
from spark.tables.documents import DocumentInvalid, Section, format_list, one_of, text
from spark.tables.protobuf_bodies import ProtobufBodies, messages_in

Bodies = AvroBodies | ProtobufBodies
_COMPILE_SECONDS: Final = 60
_NUMBER_MAX: Final = 2**32 - 1


def avro_bodies(section: Section, beside: Path) -> tuple[AvroBodies, dict[str, ColumnType]]:
    """Read the settings of ``decode`` for bodies in Avro, and their columns.

    Raises DocumentInvalid with the line of the setting, or with the schema file and the line or field in it.
    """
    path = _path_of(section, "schema_file", beside)
    schema = _read(section, "schema_file", path).decode("utf-8", "replace")
    has_header = section.member("header", one_of("none", "confluent"), "none") == "confluent"
    bodies = AvroBodies(schema, (), has_header)
    columns = _columns(bodies, path, section, "fastavro", "avro")
    writers: dict[int, Path] = {}
    if (value := section.value("writer_schemas")) is not None:
        if not has_header:
            raise value.error("needs header = confluent, which names the schema of each message; if all messages "
                                "have one schema, set writer_schema")  # fmt: skip
        writers = section.member("writer_schemas", lambda each: _numbered_paths(each, beside))
    if (value := section.value("writer_schema")) is not None:
        if has_header:
            raise value.error("is for bodies without a header: with one, set writer_schemas")
        writers = {NO_NUMBER: section.member("writer_schema", lambda each: _beside(text(each), beside))}
    for number, file in writers.items():
        setting = "writer_schema" if number == NO_NUMBER else "writer_schemas"
        writer_schema = _read(section, setting, file).decode("utf-8", "replace")
        bodies = AvroBodies(schema, (*bodies.writers, (number, writer_schema)), has_header)
        _columns(bodies, file, section, "fastavro", "avro")
    return bodies, columns


def protobuf_bodies(section: Section, beside: Path) -> tuple[ProtobufBodies, dict[str, ColumnType]]:
    """Read the settings of ``decode`` for bodies in Protobuf, and their columns. Raises DocumentInvalid."""
    path = _path_of(section, "schema_file", beside)
    content = _read(section, "schema_file", path)
    files = compile_proto(path) if path.suffix == ".proto" else content
    has_header = section.member("header", one_of("none", "confluent"), "none") == "confluent"
    rejects = section.member("new_fields", one_of("ignore", "dead-letter"), "ignore") == "dead-letter"
    message = section.member("message", text, "")
    if not message:
        try:
            names = messages_in(files)
        except SchemaUnusable as error:
            raise DocumentInvalid(f"{path}: {error}") from None
        except ImportError:
            raise _missing_error(section, "protobuf", "protobuf") from None
        if len(names) != 1:
            raise section.error(f"message is missing: {path} has {format_list(names) or 'no messages'}")
        message = names[0]
    bodies = ProtobufBodies(files, message, has_header, rejects)
    return bodies, _columns(bodies, path, section, "protobuf", "protobuf")


def compile_proto(path: Path) -> bytes:
    """The descriptors of a .proto file and its imports, by protoc. Raises DocumentInvalid with protoc's line."""
    tool, includes = [shutil.which("protoc") or ""], [str(path.parent)]
    if not tool[0]:
        spec = importlib.util.find_spec("grpc_tools")
        if spec is None or not spec.submodule_search_locations:
            raise DocumentInvalid(
                f"{path}: protoc, which compiles .proto files, is not installed: pip install grpcio-tools. Or compile "
                f"it elsewhere, with protoc --include_imports --descriptor_set_out={path.with_suffix('.desc').name} "
                f"{path.name}, and name that file"
            )
        tool = [sys.executable, "-m", "grpc_tools.protoc"]
        includes.append(str(Path(spec.submodule_search_locations[0]) / "_proto"))
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "set"
        arguments = [f"-I{each}" for each in includes]
        ran = subprocess.run(
            [*tool, *arguments, "--include_imports", f"--descriptor_set_out={target}", path.name],
            cwd=path.parent,
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS,
            check=False,
        )
        if ran.returncode:
            lines = [line for line in ran.stderr.splitlines() if line.strip()] or [
                f"protoc ended with {ran.returncode}"
            ]
            raise DocumentInvalid(str(path.parent / lines[0]))  # it names an absolute path, or one from there
        return target.read_bytes()


def _columns(bodies: Bodies, path: Path, section: Section, library: str, extra: str) -> dict[str, ColumnType]:
    try:
        return bodies.columns()
    except SchemaUnusable as error:
        raise DocumentInvalid(f"{path}: {error}") from None
    except ImportError:
        raise _missing_error(section, library, extra) from None


def _missing_error(section: Section, library: str, extra: str) -> DocumentInvalid:
    return section.error(f"format needs {library}, here and on all executors: pip install 'raftmq[{extra}]'")


def _path_of(section: Section, name: str, beside: Path) -> Path:
    return section.member(name, lambda each: _beside(text(each), beside))


def _beside(path: str, directory: Path) -> Path:
    return directory / Path(path).expanduser()


def _read(section: Section, name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        value = section.value(name)
        assert value is not None
        raise value.error(f"names {path}, which cannot be read: {error.strerror}") from None


def _numbered_paths(value: Any, beside: Path) -> dict[int, Path]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must be a mapping of numbers to files, such as {"7": orders-1.avsc}')
    paths: dict[int, Path] = {}
    for name, file in value.items():
        if not str(name).isdecimal() or int(name) > _NUMBER_MAX:
            raise ValueError(f"has {name!r}: expected the number of a schema in a registry")
        paths[int(name)] = _beside(text(file), beside)
    return paths
