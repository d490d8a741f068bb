"""The JSON schema of the matrix file: what the parser accepts it accepts, and it has the parser's keys and values."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from packaging.version import VERSION_PATTERN, Version
from schema_documents import documents, mutated

from allranks.cli.init import Repository, matrix_text
from allranks.errors import MatrixError
from allranks.matrix import axes, declaration, model
from allranks.matrix.axes import AXES, LARGEST, SMALLEST, is_version
from allranks.matrix.declaration import EXAMPLE, load
from allranks.matrix.runners import OWN_MINUTES
from allranks.matrix.tables import declared_tables, json_schema
from allranks.matrix.toml_file import Table
from allranks.protocol.config import Isolation

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
VALIDATOR = Draft7Validator(SCHEMA)

EVERYTHING = {
    "matrix": {
        "backend": ["gloo", "mine"],
        "world_size": [1, 2],
        "gpu_count": [0],
        "init_method": "env",
        "nodes": 1,
        "torch": ["2.13.0", "2.14.1+cu130"],
        "custom_backends": ["mine"],
        "exclude": [{"when": "backend == 'mine' and world_size == 2", "reason": "not yet"}],
        "include": [
            {
                "backend": "nccl",
                "world_size": 4,
                "gpu_count": 4,
                "init_method": "tcp",
                "nodes": 2,
                "torch": "2.13.0",
                "reason": "big",
            }
        ],
    },
    "suites": {
        "one": {
            "path": ["tests", "more/test_*.py"],
            "exclude": ["tests/slow"],
            "isolation": "job",
            "overlap": 2,
            "test_groups": {"port-29500": ["tests/test_a.py::TestPort"]},
            "process_group": False,
            "launches_ranks": False,
            "when": "world_size > 1",
            "files": ["data.txt"],
            "pytest_args": ["-x"],
            "shards": 3,
            "default": False,
        },
        "two.2": {"path": "more"},
    },
    "images": {
        "cpu": {
            "when": "gpu_count == 0",
            "base": "python:3.12-slim",
            "index": "https://example.org/whl",
            "extra_index": ["https://example.org/more"],
            "packages": ["numpy>=2"],
            "requirements": "data.txt",
            "project": ".",
            "mode": "copy",
            "apt": ["libnuma1"],
        },
        "gpu": {"when": "gpu_count > 0", "image": "name@sha256:1"},
    },
    "env": [{"when": "world_size == 1", "set": {"A": "", "B_1": "x"}}, {"set": {}}],
    "policy": {"skip": "pass", "mixed_skip": ["*x*"], "baseline": "data.txt"},
    "limits": {
        "process_group": 5,
        "test": 20.5,
        "job": 600,
        "peer_grace": 1,
        "assembly": 30,
        "silence": 5,
        "memory_mib": 512,
        "disk_mib": 16,
    },
    "process": {"python": "python3"},
    "docker": {"seccomp": "default"},
    "engines": {"lsf": {"queue": "gpu"}},
    "runners": [
        {
            "when": "gpu_count == 0",
            "labels": ["ubuntu-latest"],
            "cores": 4,
            "hosted": True,
            "engine": "auto",
            "minutes": 60,
        },
        {"group": "gpu machines", "gpus": 4},
    ],
    "durations": {"file": "durations.json"},
    **{name: table["examples"][0] for name, table in declared_tables().items()},
}
SMALL = {
    "matrix": {"backend": "gloo", "world_size": 2},
    "suites": {"t": {"path": "tests"}},
    "images": {"cpu": {"torch": "2.13.0"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    for name in ("tests/slow/test_x.py", "more/test_y.py", "data.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def toml(value: object) -> str:
    """A value as TOML on one line."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
    return repr(value)


def is_accepted(folder: Path, document: dict) -> bool:
    (folder / "matrix.toml").write_text(
        "".join(f"{json.dumps(key)} = {toml(item)}\n" for key, item in document.items())
    )
    try:
        load(folder)
    except MatrixError:
        return False
    return True


def wrongs(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("document", [EVERYTHING, SMALL, tomllib.loads(EXAMPLE)])
def test_parser_and_schema_accept_what_is_right(folder, document):
    assert is_accepted(folder, document)
    assert wrongs(document) == []


@pytest.mark.parametrize("text", [(ROOT / "matrix.toml").read_text(), matrix_text(Repository(folder="x", gpus=2))])
def test_the_schema_accepts_our_own_files(text):
    assert wrongs(tomllib.loads(text)) == []


def test_the_schema_is_printed_for_the_matrix_file_and_for_pyproject(allranks):
    alone, inside = (json.loads(allranks("init", "--schema", *arguments)[1]) for arguments in ((), ("--pyproject",)))
    assert alone["required"] == ["matrix", "suites", "images"]
    right = {"matrix": {"backend": "gloo", "world_size": 2}, "suites": {"t": {"path": "t"}}, "images": {"a": {}}}
    wrong = {**right, "matrix": {"backend": "gloo", "world_size": 0}}
    schema = Draft7Validator(inside)
    assert schema.is_valid({"project": {"name": "x"}, "tool": {"other": 1, "allranks": right}})
    assert schema.is_valid({"project": {"name": "x"}})
    assert not schema.is_valid({"tool": {"allranks": wrong}})
    assert [Draft7Validator(alone).is_valid(each) for each in (right, wrong)] == [True, False]


# Keys and values


def node_at(path: tuple[str | int, ...]) -> dict:
    """The part of the schema for a table of the file."""
    node = SCHEMA
    for part in path:
        if isinstance(part, int):
            node = node["items"]
        else:
            node = node.get("properties", {}).get(part) or node["additionalProperties"]
    return node


def test_every_table_has_the_keys_of_the_parser(folder, monkeypatch):
    seen = {}
    monkeypatch.setattr(Table, "only", lambda table, *known: seen.setdefault(table.key, set(known)))
    assert is_accepted(folder, EVERYTHING)
    assert len(seen) > 15
    for key, known in seen.items():
        assert set(node_at(key)["properties"]) == known, key
        assert node_at(key)["additionalProperties"] is False, key
    assert {key for key, node in SCHEMA["properties"].items() if "properties" in node} <= {
        key[0] for key in seen if key
    }


def test_the_document_of_these_tests_has_every_key():
    def lacking(node: dict, values: list[dict], path: str) -> Iterator[str]:
        for name, inner in node.get("properties", {}).items():
            found = [value[name] for value in values if name in value]
            if not found and path != "images.":
                yield path + name
            tables = [each for value in found for each in (value if isinstance(value, list) else [value])]
            tables = [table for table in tables if isinstance(table, dict)]
            yield from lacking(inner.get("items", inner), tables, f"{name}.")
            if isinstance(inner.get("additionalProperties"), dict):
                children = [child for table in tables for child in table.values() if isinstance(child, dict)]
                yield from lacking(inner["additionalProperties"], children, f"{name}.")

    assert list(lacking(SCHEMA, [EVERYTHING], "")) == []


def test_lists_of_values_are_those_of_the_parser():
    def enum(*path: str | int) -> tuple[str, ...]:
        return tuple(node_at(path)["enum"])

    definitions = SCHEMA["definitions"]
    assert tuple(definitions["backend"]["anyOf"][0]["enum"]) == axes.BACKENDS
    assert tuple(definitions["init_method"]["enum"]) == declaration.INIT_METHODS
    assert enum("suites", "x", "isolation") == get_args(Isolation)
    assert enum("policy", "skip") == get_args(model.SkipPolicy)
    assert enum("docker", "seccomp") == get_args(model.SeccompName)
    assert enum("images", "x", "mode") == model.PROJECT_MODES
    assert set(node_at(("env", 0, "set"))["propertyNames"]["not"]["enum"]) == declaration.SET_BY_ALLRANKS
    assert set(SCHEMA["properties"]["matrix"]["properties"]) >= set(AXES)


def test_bounds_are_those_of_the_parser():
    definitions = SCHEMA["definitions"]
    assert {definitions[name]["maximum"] for name in ("count", "positive")} == {LARGEST}
    assert [definitions[name]["minimum"] for name in ("count", "positive")] == [
        SMALLEST["gpu_count"],
        SMALLEST["nodes"],
    ]
    assert node_at(("suites", "x", "shards"))["maximum"] == declaration.MOST_SHARDS
    assert node_at(("limits", "memory_mib"))["minimum"] == declaration.SMALLEST_MEMORY
    assert node_at(("runners", 0, "minutes"))["maximum"] == OWN_MINUTES


def test_defaults_are_those_of_the_parser():
    owners = {
        ("suites", "x"): model.Suite,
        ("images", "x"): model.Image,
        ("limits",): model.Limits,
        ("docker",): model.Docker,
        ("runners", 0): model.RunnerRule,
    }
    told = {
        (path, name): (node["default"], getattr(owner, name))
        for path, owner in owners.items()
        for name, node in node_at(path)["properties"].items()
        if "default" in node
    }
    assert len(told) > 10
    assert {key: pair for key, pair in told.items() if pair[0] != pair[1]} == {}
    axes = SCHEMA["properties"]["matrix"]["properties"]
    for axis, value in declaration.DEFAULTS.items():
        assert axes[axis].get("default", [""]) == [value]
    assert node_at(("durations", "file"))["default"] == str(model.DURATIONS_FILE)


# Properties


@given(
    text=st.from_regex(
        re.compile(VERSION_PATTERN, re.VERBOSE | re.ASCII), fullmatch=True, alphabet=st.characters(codec="ascii")
    )
)
def test_every_exact_version_is_one_for_the_schema(text):
    version = str(Version(text))
    if is_version(version):
        assert re.search(SCHEMA["definitions"]["version"]["pattern"], version)


def check(folder: Path, document: dict) -> None:
    accepted = is_accepted(folder, document)
    event("accepted" if accepted else "refused")
    if accepted:
        assert wrongs(document) == []


@settings(max_examples=300, deadline=None)
@given(document=documents(SCHEMA, SMALL))
def test_what_the_parser_accepts_of_the_schemas_documents_the_schema_accepts(folder, document):
    check(folder, document)


@settings(max_examples=500, deadline=None)
@given(document=mutated(st.sampled_from([EVERYTHING, SMALL])))
def test_what_the_schema_refuses_of_a_changed_document_the_parser_refuses(folder, document):
    check(folder, document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("matrix", "backned"), "gloo"),
        (("matrix", "backend"), "NCCL"),
        (("matrix", "world_size"), []),
        (("matrix", "world_size"), [0]),
        (("matrix", "world_size"), 1_000_000),
        (("matrix", "world_size"), [1, 1]),
        (("matrix", "init_method"), "udp"),
        (("matrix", "torch"), "2.13"[:1]),
        (("matrix", "exclude"), [{"when": "world_size > 1"}]),
        (("matrix", "include"), [{"backend": "gloo"}]),
        (("suites",), {}),
        (("suites", "a b"), {"path": "tests"}),
        (("suites", "t", "path"), []),
        (("suites", "t", "isolation"), "files"),
        (("suites", "t", "shards"), 1001),
        (("images", "cpu", "image"), "x:1"),
        (("images", "cpu", "mode"), "copy"),
        (("images", "cpu", "apt"), ["num py"]),
        (("env",), [{"set": {"RANK": "1"}}]),
        (("env",), [{"set": {"A": 1}}]),
        (("limits",), {"memory_mib": 1}),
        (("limits",), {"test": 0}),
        (("engines",), {"docker": {}}),
        (("engines",), {"process": {}}),
        (("runners",), [{"gpus": 1}]),
        (("docker",), {"seccomp": "none"}),
    ],
    ids=str,
)
def test_a_mistake_is_refused_by_both(folder, path, value):
    document = copy.deepcopy(SMALL)
    *outer, last = path
    place = document
    for part in outer:
        place = place[part]
    place[last] = value
    assert wrongs(document) != []
    assert not is_accepted(folder, document)
