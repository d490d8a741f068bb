"""What the slurm engine takes of its settings: the environment of jobs in a container, and the most jobs at a time."""

import pytest

from allranks.engines.base import JobEnvironment
from allranks.matrix.model import Image, Matrix
from allranks.plugins.slurm.engine import SlurmEngine
from allranks.plugins.slurm.keys import Slurm


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = Slurm(container="apptainer:/torch.sif", spool=str(tmp_path / "spool"))
    matrix = Matrix(path=tmp_path / "matrix.toml", axes={}, tables={"slurm": settings})
    return SlurmEngine(Slurm()).prepare(matrix, pytest.fail, None)


@pytest.mark.parametrize(
    "image", [Image(name="made", torch="2.13.0", packages=("numpy",)), Image(name="finished", image="torch:2")]
)
def test_an_image_makes_no_environment_where_a_container_has_one(environment, image):
    assert environment(image) == JobEnvironment(image="apptainer:/torch.sif", python="python3")


def test_the_most_jobs_are_those_of_the_matrix_file_unless_the_user_says_other(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = Slurm(jobs=3, spool=str(tmp_path / "spool"))
    matrix, cluster = Matrix(path=tmp_path / "matrix.toml", axes={}, tables={"slurm": settings}), SlurmEngine(Slurm())
    cluster.prepare(matrix, pytest.fail, None)
    assert cluster.most_jobs == 3
    (tmp_path / "allranks").mkdir()
    (tmp_path / "allranks" / "slurm.toml").write_text("jobs = 2")
    cluster.prepare(matrix, pytest.fail, None)
    assert cluster.most_jobs == 2


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize("also", [(), ("--jobs", "1"), ("-q",), ("--seed", "1")])
def test_a_run_without_slurm_is_refused_before_there_is_one(allranks, repository, also):
    code, _, err = allranks("run", "--engine", "slurm", *also)
    assert code == 4
    assert "This host is not part of a SLURM cluster." in err
    assert not (repository / "results").exists()
