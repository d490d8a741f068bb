"""The settings of the slurm engine: of the matrix file, and of the user's own."""

import pytest

from allranks.errors import MatrixError
from allranks.matrix.model import Slurm
from allranks.plugins.slurm.settings import with_user_file


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write the user's own file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text):
        (tmp_path / "allranks").mkdir()
        (tmp_path / "allranks" / "slurm.toml").write_text(text)

    return write


def test_the_users_file_takes_precedence_key_by_key(own):
    own('partition = "mine"\njobs = 3\n')
    settings = Slurm(partition="theirs", account="a", extra=("-x",))
    assert with_user_file(settings) == Slurm(partition="mine", account="a", jobs=3, extra=("-x",))


@pytest.mark.usefixtures("own")
def test_without_it_the_settings_stand():
    assert with_user_file(Slurm(qos="high")) == Slurm(qos="high")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('partitoin = "x"', "slurm.toml:1: partitoin: there is no such key"),
        ("jobs = 0", "slurm.toml:1: jobs"),
        ("spool = 3", "slurm.toml:1: spool"),
        ("= 1", "slurm.toml:1"),
    ],
)
def test_a_mistake_in_it_is_told_with_its_line(own, text, what):
    own(text)
    with pytest.raises(MatrixError) as raised:
        with_user_file(Slurm())
    assert what in raised.value.what


@pytest.fixture
def container(load_text, document):
    return lambda told: load_text(f"{document}[slurm]\ncontainer = '{told}'\n").slurm.container


@pytest.mark.parametrize(
    "told",
    [
        "charliecloud:/shared/images/torch",
        "charliecloud:registry.example.com:5050/torch",
        "apptainer:docker://torch:2",
        "docker:registry.example.com:5050/torch:2",
        "pyxis:nvcr.io#nvidia/pytorch:24.01-py3",
    ],
)
def test_an_image_of_a_known_runtime_is_taken_as_it_is(container, told):
    assert container(told) == told


@pytest.mark.parametrize("told", ["podman:torch", "/shared/torch.sif", "apptainer", "pyxis:", "pyxis: ", "Apptainer:x"])
def test_another_runtime_or_no_image_is_refused_with_the_right_ones(container, told):
    with pytest.raises(MatrixError) as raised:
        container(told)
    assert "slurm.container" in raised.value.what
    assert raised.value.remedy == 'Write one of "apptainer:IMAGE", "charliecloud:IMAGE", "docker:IMAGE", "pyxis:IMAGE".'


def test_variables_and_the_home_folder_are_put_into_the_name_of_an_image(container, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert container("charliecloud:~/torch") == "charliecloud:/home/me/torch"
    assert container("apptainer:$SCRATCH/torch.sif") == "apptainer:/scratch/me/torch.sif"


def test_there_is_no_container_unless_one_is_named(load_text, document):
    assert load_text(document).slurm.container is None
