"""``[slurm] container``, as it is read."""

import pytest

from allranks.errors import MatrixError


@pytest.fixture
def container(load_text, document):
    return lambda told: load_text(f"{document}[slurm]\ncontainer = '{told}'\n").slurm.container


@pytest.mark.parametrize(
    "told",
    [
        "charliecloud:/shared/images/torch",
        "charliecloud:registry.example.com:5050/torch",
        "apptainer:docker://torch:2",
        "pyxis:nvcr.io#nvidia/pytorch:24.01-py3",
    ],
)
def test_an_image_of_a_known_runtime_is_taken_as_it_is(container, told):
    assert container(told) == told


@pytest.mark.parametrize("told", ["docker:torch", "/shared/torch.sif", "apptainer", "pyxis:", "pyxis: ", "Apptainer:x"])
def test_another_runtime_or_no_image_is_refused_with_the_right_ones(container, told):
    with pytest.raises(MatrixError) as raised:
        container(told)
    assert "slurm.container" in raised.value.what
    assert raised.value.remedy == 'Write one of "apptainer:IMAGE", "charliecloud:IMAGE", "pyxis:IMAGE".'


def test_variables_and_the_home_folder_are_put_into_the_name_of_an_image(container, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert container("charliecloud:~/torch") == "charliecloud:/home/me/torch"
    assert container("apptainer:$SCRATCH/torch.sif") == "apptainer:/scratch/me/torch.sif"


def test_there_is_no_container_unless_one_is_named(load_text, document):
    assert load_text(document).slurm.container is None
