"""The settings of the slurm engine: of the matrix file, and of the user's own."""

import tomllib

import pytest
from jsonschema import Draft7Validator

from allranks.errors import MatrixError
from allranks.matrix.model import Matrix
from allranks.matrix.tables import json_schema
from allranks.plugins.slurm.keys import Slurm
from allranks.plugins.slurm.settings import slurm_settings


@pytest.fixture
def matrix(tmp_path):
    """``matrix(key=value, ...)``: a matrix whose file has these keys in [slurm]."""
    return lambda **keys: Matrix(path=tmp_path / "matrix.toml", axes={}, tables={"slurm": Slurm(**keys)})


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """Write the user's own file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text):
        (tmp_path / "allranks").mkdir()
        (tmp_path / "allranks" / "slurm.toml").write_text(text)

    return write


@pytest.mark.parametrize(
    "keys",
    [
        "jobs = 0",
        "spool = ' '",
        "container = 'podman:torch'",
        "container = 'pyxis: '",
        "extra = '--exclusive'",
        "spool = 3",
        "sppol = 'x'",
    ],
)
def test_the_parser_and_the_schema_refuse_the_same(load_text, document, keys):
    text = f"{document}[slurm]\n{keys}\n"
    with pytest.raises(MatrixError, match="slurm"):
        load_text(text)
    assert not Draft7Validator(json_schema()).is_valid(tomllib.loads(text))


@pytest.mark.parametrize("name", ["partition", "account", "qos"])
def test_what_sbatch_takes_by_itself_goes_into_extra(load_text, document, name):
    with pytest.raises(MatrixError) as raised:
        load_text(f"{document}[slurm]\n{name} = 'gpu'\n")
    assert f'Write extra = ["--{name}=…"]' in raised.value.remedy


def test_the_users_file_takes_precedence_key_by_key(own, matrix):
    own('spool = "/mine"\njobs = 3\n')
    settings = slurm_settings(matrix(spool="/theirs", container="docker:a", extra=("-x",)))
    assert settings == Slurm(spool="/mine", container="docker:a", jobs=3, extra=("-x",))


def test_the_users_arguments_come_after_those_of_the_matrix_so_that_they_win(own, matrix):
    own('extra = ["--partition=mine"]\n')
    assert slurm_settings(matrix(extra=("--partition=theirs", "-x"))).extra == (
        "--partition=theirs",
        "-x",
        "--partition=mine",
    )


def test_without_it_the_settings_stand(matrix):
    assert slurm_settings(matrix(jobs=7)) == Slurm(jobs=7)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('sppol = "x"', "slurm.toml:1: sppol: there is no such key"),
        ("jobs = 0", "slurm.toml:1: jobs"),
        ("spool = 3", "slurm.toml:1: spool"),
        ("= 1", "slurm.toml:1"),
    ],
)
def test_a_mistake_in_it_is_told_with_its_line(own, text, what):
    own(text)
    with pytest.raises(MatrixError) as raised:
        slurm_settings()
    assert what in raised.value.what


@pytest.fixture
def container(load_text, document):
    return lambda name: slurm_settings(load_text(f"{document}[slurm]\ncontainer = '{name}'\n")).container


@pytest.mark.parametrize(
    "name",
    [
        "charliecloud:/shared/images/torch",
        "charliecloud:registry.example.com:5050/torch",
        "apptainer:docker://torch:2",
        "docker:registry.example.com:5050/torch:2",
        "pyxis:nvcr.io#nvidia/pytorch:24.01-py3",
    ],
)
def test_an_image_of_a_known_runtime_is_taken_as_it_is(container, name):
    assert container(name) == name


@pytest.mark.parametrize("name", ["podman:torch", "/shared/torch.sif", "apptainer", "pyxis:", "pyxis: ", "Apptainer:x"])
def test_another_runtime_or_no_image_is_refused_with_the_right_ones(container, name):
    with pytest.raises(MatrixError) as raised:
        container(name)
    assert "slurm.container" in raised.value.what
    assert raised.value.remedy == 'Write one of "apptainer:IMAGE", "charliecloud:IMAGE", "docker:IMAGE", "pyxis:IMAGE".'


def test_variables_and_the_home_folder_are_put_into_the_name_of_an_image(container, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert container("charliecloud:~/torch") == "charliecloud:/home/me/torch"
    assert container("apptainer:$SCRATCH/torch.sif") == "apptainer:/scratch/me/torch.sif"


def test_there_is_no_container_unless_one_is_named(load_text, document):
    assert slurm_settings(load_text(document)).container is None
