"""The JSON schema of the matrix file accepts the same documents as the parser."""

import copy
import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from packaging.version import VERSION_PATTERN, Version
from schema_documents import documents, mutated

from allranks.cli.init import Repository, matrix_text
from allranks.errors import MatrixError
from allranks.matrix.axes import is_version
from allranks.matrix.declaration import load
from allranks.matrix.keys import keys_of
from allranks.matrix.keys import version as version_kind
from allranks.matrix.model import Axes, Docker, EnvRule, Image, Limits, Policy, Process, Rule, RunnerRule, Suite
from allranks.matrix.tables import json_schema, plugin_tables

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
VALIDATOR = Draft7Validator(SCHEMA)

EVERYTHING = {
    "matrix": {
        "backend": ["gloo", "mine", "nccl"],
        "world_size": [1, 2],
        "gpu_count": [0, 1],
        "init_method": "env",
        "nodes": 1,
        "torch": ["2.13.0", "2.14.1+cu130"],
        "custom_backends": ["mine"],
        "exclude": [
            {"when": "backend == 'mine' and world_size == 2", "reason": "not yet"},
            {"when": "backend == 'nccl' and gpu_count != world_size", "reason": "a GPU for each rank"},
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
            "unchecked_children": "error",
            "ignored_notices": ["state", "warnings"],
            "start_children": "warm",
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
        "build": 900,
        "peer_grace": 1,
        "assembly": 30,
        "silence": 5,
        "memory_mib": 512,
        "disk_mib": 16,
    },
    "process": {"python": "python3"},
    "docker": {"seccomp": "default"},
    "runners": [
        {
            "when": "gpu_count == 0",
            "labels": ["ubuntu-latest"],
            "cores": 4,
            "hosted": True,
            "engine": "auto",
        },
        {"labels": ["gpu machines"], "gpus": 4},
    ],
    **{name: {key.name: key.example for key in keys_of(table).values()} for name, table in plugin_tables().items()},
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


@pytest.mark.parametrize("document", [EVERYTHING, SMALL])
def test_parser_and_schema_accept_what_is_right(folder, document):
    assert is_accepted(folder, document)
    assert wrongs(document) == []


@pytest.mark.parametrize("text", [(ROOT / "matrix.toml").read_text(), matrix_text(Repository(folder="x", gpus=2))])
def test_the_schema_accepts_our_own_files(text):
    assert wrongs(tomllib.loads(text)) == []


def test_the_schema_is_printed_for_the_matrix_file_and_for_pyproject(allranks):
    alone, inside = (json.loads(allranks("init", "--schema", *arguments)[1]) for arguments in ((), ("--pyproject",)))
    assert alone["required"] == ["matrix", "suites"]
    right = {"matrix": {"backend": "gloo", "world_size": 2}, "suites": {"t": {"path": "t"}}, "images": {"a": {}}}
    wrong = {**right, "matrix": {"backend": "gloo", "world_size": 0}}
    schema = Draft7Validator(inside)
    assert schema.is_valid({"project": {"name": "x"}, "tool": {"other": 1, "allranks": right}})
    assert schema.is_valid({"project": {"name": "x"}})
    assert not schema.is_valid({"tool": {"allranks": wrong}})
    assert [Draft7Validator(alone).is_valid(document) for document in (right, wrong)] == [True, False]


def test_the_document_of_these_tests_has_every_key():
    tables = {"matrix": Axes, "suites": Suite, "images": Image, "env": EnvRule, "policy": Policy, "limits": Limits}
    tables |= {"process": Process, "docker": Docker, "runners": RunnerRule, **plugin_tables()}
    assert tables.keys() == EVERYTHING.keys()
    named = {**EVERYTHING, **{name: list(EVERYTHING[name].values()) for name in ("suites", "images")}}
    lacking = [
        f"{name}.{key.name}"
        for name, table in tables.items()
        for key in keys_of(table).values()
        if not any(key.name in entry for entry in (named[name] if isinstance(named[name], list) else [named[name]]))
    ]
    assert lacking == ["images.torch"]  # it is an axis there


def test_every_key_has_a_sentence_and_an_example_that_its_schema_accepts():
    for table in (
        Axes,
        Rule,
        Suite,
        Image,
        EnvRule,
        Policy,
        Limits,
        Process,
        Docker,
        RunnerRule,
        *plugin_tables().values(),
    ):
        for key in keys_of(table).values():
            assert key.meaning.endswith("."), key
            if key.name != "exclude" or table is Suite:
                Draft7Validator(key.kind.schema).validate(key.example)
                assert key.example != key.default


def test_the_schema_is_one():
    Draft7Validator.check_schema(SCHEMA)


# Properties


@given(
    text=st.from_regex(
        re.compile(VERSION_PATTERN, re.VERBOSE | re.ASCII), fullmatch=True, alphabet=st.characters(codec="ascii")
    )
)
def test_every_exact_version_is_one_for_the_schema(text):
    version = str(Version(text))
    if is_version(version):
        assert re.search(version_kind().schema["pattern"], version)


def check(folder: Path, document: dict) -> None:
    accepted = is_accepted(folder, document)
    event("accepted" if accepted else "refused")
    if accepted:
        assert wrongs(document) == []


@given(document=documents(SCHEMA, SMALL))
def test_what_the_parser_accepts_of_the_schemas_documents_the_schema_accepts(folder, document):
    check(folder, document)


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
        (("suites",), {}),
        (("suites", "a b"), {"path": "tests"}),
        (("suites", "t", "path"), []),
        (("suites", "t", "isolation"), "files"),
        (("suites", "t", "shards"), 1001),
        (("images", "cpu", "apt"), ["num py"]),
        (("env",), [{"set": {"RANK": "1"}}]),
        (("env",), [{"set": {"A": 1}}]),
        (("limits",), {"memory_mib": 1}),
        (("limits",), {"test": 0}),
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
