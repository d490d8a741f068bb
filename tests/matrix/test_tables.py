"""Tables of plug-ins in the matrix file: declaration, parsing, errors and schema."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from jsonschema import Draft7Validator

from allranks.errors import MatrixError, PluginError
from allranks.matrix import tables
from allranks.matrix.declaration import load
from allranks.matrix.keys import choice, flag, key, many, text, whole

RUNTIME = text(r"^(apptainer|pyxis):.*\S", "names no image of a known runtime", 'Write "pyxis:IMAGE".')


@dataclass(frozen=True)
class Cluster:
    """A cluster."""

    queue: str | None = key(text(), "The queue.", default=None, example="gpu")
    jobs: int = key(whole(1, 500), "Jobs at a time.", default=100, example=3)
    image: str | None = key(RUNTIME, "What jobs run in.", default=None, example="pyxis:torch")
    extra: tuple[str, ...] = key(many(text()), "Arguments.", default=(), example=["--exclusive"])
    mode: str = key(choice("fast", "slow"), "How.", default="fast", example="slow")
    alone: bool = key(flag(), "With no other job.", default=False, example=True)

    RETIRED: ClassVar[Mapping[str, str]] = {"partition": "Write queue."}


@pytest.fixture(params=["own", "of a package"])
def declared(request, monkeypatch):
    """``[cluster]`` is declared by a plug-in of allranks, and by another package."""
    if request.param == "own":
        monkeypatch.setattr(tables, "own_tables", lambda: {"cluster": Cluster})
    else:
        point = SimpleNamespace(name="cluster", value="mypackage.tables:Cluster", load=lambda: Cluster)
        monkeypatch.setattr(tables, "entry_points", lambda group: [point] if group == "allranks.tables" else [])


MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.suite]
path = "suite"

[images.cpu]
torch = "2.13.0"
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with a matrix file, as the current folder."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def read(repository):
    """``read(text)``: the tables of plug-ins in the matrix file with this additional text."""

    def of(text, above=""):
        (repository / "matrix.toml").write_text(f"{above}{MATRIX}\n{text}")
        return load(repository).matrix.tables

    return of


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ('queue = "gpu"\njobs = 3', {"queue": "gpu", "jobs": 3}),
        ("jobs = 500", {"jobs": 500}),
        ('image = "pyxis:torch"', {"image": "pyxis:torch"}),
        ('extra = ["--exclusive", "--mem=0"]', {"extra": ("--exclusive", "--mem=0")}),
        ("extra = []", {}),
        ('mode = "slow"\nalone = true', {"mode": "slow", "alone": True}),
    ],
)
def test_a_table_is_its_dataclass(read, text, values):
    assert read(f"[cluster]\n{text}\n") == {"cluster": Cluster(**values)}


@pytest.mark.usefixtures("declared")
def test_a_table_that_is_not_in_the_file_is_absent(read):
    assert read("") == {}


WRONG = [
    ("queue = 7", "queue: 7 is not a string", 'Write it as:  queue = "gpu"'),
    ('queue = " "', "queue: is blank", "leave it out"),
    ("qeue = 'x'", "qeue: there is no such key", "Did you mean 'queue'?"),
    ("partition = 'x'", "partition: there is no such key", "Write queue."),
    ("jobs = 0", "jobs: 0 is out of range", "from 1 to 500"),
    ("jobs = 501", "jobs: 501 is out of range", "from 1 to 500"),
    ("jobs = true", "jobs: true is not a whole number", "of at least 1"),
    ("jobs = '3'", "is not a whole number", "without quotes"),
    ("image = 'podman:x'", "names no image of a known runtime", 'Write "pyxis:IMAGE".'),
    ("image = 'pyxis: '", "names no image of a known runtime", 'Write "pyxis:IMAGE".'),
    ("extra = '--mem'", "is not a list of strings", "extra = ["),
    ("extra = ['']", "is blank", 'extra = ["--exclusive"]'),
    ("mode = 'fats'", "is not one of", "Did you mean 'fast'?"),
    ("alone = 1", "alone: 1 is not true or false", "alone = true"),
]


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(("text", "message", "remedy"), WRONG)
def test_a_wrong_value_is_an_error_with_its_line_and_a_remedy(read, text, message, remedy):
    with pytest.raises(MatrixError) as caught:
        read(f"[cluster]\n\n{text}")
    line = next(n for n, row in enumerate(Path("matrix.toml").read_text().splitlines(), 1) if row == text)
    assert caught.value.what.startswith(f"matrix.toml:{line}: cluster.{text.partition(' ')[0]}: ")
    assert message in caught.value.what
    assert remedy in caught.value.terminal_text


@pytest.mark.usefixtures("declared", "repository")
@pytest.mark.parametrize("text", [text for text, *_ in WRONG])
def test_the_schema_refuses_what_the_parser_refuses(text):
    document = {**tomllib.loads(Path("matrix.toml").read_text()), "cluster": tomllib.loads(text)}
    assert not Draft7Validator(tables.json_schema()).is_valid(document)
    assert Draft7Validator(tables.json_schema()).is_valid({**document, "cluster": {"jobs": 3}})


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("text", ["cluster = 3", "cluster = [1]", "cluster = [{ jobs = 3 }]", "cluster = 'x'"])
def test_what_is_no_table_is_refused(read, text):
    with pytest.raises(MatrixError, match=r"cluster: .* is not a table"):
        read("", above=text)


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("name", ["clutser", "Cluster", "polcy", "cluster2", "suite"])
def test_an_unknown_table_is_an_error_that_suggests_one(read, name):
    with pytest.raises(MatrixError, match="there is no such key") as caught:
        read(f"[{name}]\njobs = 3")
    assert "Did you mean" in caught.value.terminal_text


def test_the_former_table_of_engines_is_an_error_that_says_where_their_keys_go(read):
    with pytest.raises(MatrixError, match=r"engines: there is no such key\.\n.*\[NAME\]"):
        read("[engines.lsf]\nqueue = 'gpu'")


def test_without_its_plug_in_a_table_is_unknown(read, monkeypatch):
    monkeypatch.setattr(tables, "own_tables", dict)
    with pytest.raises(MatrixError, match=r"cluster: there is no such key"):
        read("[cluster]\njobs = 3")


@pytest.mark.parametrize("name", ["policy", "docker", "mine", "matrix"])
def test_a_second_declaration_of_a_table_is_refused(read, monkeypatch, name):
    points = [SimpleNamespace(name=table, value="x:Y", load=lambda: Cluster) for table in ("mine", name)]
    monkeypatch.setattr(tables, "entry_points", lambda group: points if group == "allranks.tables" else [])
    with pytest.raises(PluginError, match=rf"The table \[{name}\] of the matrix file is declared twice"):
        read("[mine]\njobs = 3")


@pytest.mark.parametrize("error", [ImportError("no module lsf"), SystemExit(3), SyntaxError("bad"), KeyError("x")])
def test_a_declaration_that_cannot_be_loaded_is_one_error(read, monkeypatch, error):
    def broken():
        raise error

    point = SimpleNamespace(name="lsf", value="lsf.tables:LSF", load=broken)
    monkeypatch.setattr(tables, "entry_points", lambda group: [point] if group == "allranks.tables" else [])
    with pytest.raises(PluginError, match=r"The declaration of the table \[lsf\] cannot be loaded \(lsf.tables:LSF\)"):
        read("[lsf]\njobs = 3")


@pytest.mark.parametrize("declaration", [{}, str, Cluster(), 7], ids=str)
def test_a_declaration_of_another_form_is_one_error(read, monkeypatch, declaration):
    point = SimpleNamespace(name="lsf", value="lsf.tables:LSF", load=lambda: declaration)
    monkeypatch.setattr(tables, "entry_points", lambda group: [point] if group == "allranks.tables" else [])
    with pytest.raises(PluginError, match="lsf"):
        read("[lsf]\njobs = 3")


WITHOUT_PLUGGY = """
import sys
sys.modules["pluggy"] = None  # an import of it fails
from pathlib import Path
from allranks.matrix.declaration import load
print(sorted(load(Path(sys.argv[1])).matrix.tables))
loaded = [name for name in sys.modules if name.startswith("allranks.plugins.") and name.count(".") > 2]
assert all(name.endswith(".keys") for name in loaded), loaded
"""


def test_reading_a_matrix_imports_neither_pluggy_nor_more_of_a_plug_in_than_its_keys(repository):
    names = sorted(tables.own_tables())
    with (repository / "matrix.toml").open("a") as file:
        file.write("".join(f"[{name}]\n" for name in names))
    command = [sys.executable, "-c", WITHOUT_PLUGGY, str(repository)]
    found = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert found.stdout == f"{names}\n"
