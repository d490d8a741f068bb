"""What the slurm engine takes of its settings: the environment of jobs in a container, and the most jobs at a time."""

import pytest

from allranks.engines.kind import JobEnvironment
from allranks.engines.slurm_cluster import ConnectedCluster
from allranks.matrix.model import Image, Matrix, Slurm


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = Slurm(container="apptainer:/torch.sif", spool=str(tmp_path / "spool"))
    matrix = Matrix(path=tmp_path / "matrix.toml", axes={}, slurm=settings)
    _, make = ConnectedCluster(settings).engine_for(matrix, pytest.fail, None)
    return make


@pytest.mark.parametrize(
    "image", [Image(name="made", torch="2.13.0", packages=("numpy",)), Image(name="finished", image="torch:2")]
)
def test_an_image_makes_no_environment_where_a_container_has_one(environment, image):
    assert environment(image) == JobEnvironment(image="apptainer:/torch.sif", python="python3")


def test_the_most_jobs_are_those_of_the_matrix_file_unless_the_user_says_other(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cluster = ConnectedCluster(Slurm())
    matrix = Matrix(path=tmp_path / "matrix.toml", axes={}, slurm=Slurm(jobs=3))
    assert (cluster.most_jobs(), cluster.most_jobs(matrix)) == (Slurm.jobs, 3)
    (tmp_path / "allranks").mkdir()
    (tmp_path / "allranks" / "slurm.toml").write_text("jobs = 2")
    assert cluster.most_jobs(matrix) == 2
