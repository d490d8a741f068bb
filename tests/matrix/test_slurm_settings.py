"""The settings of the slurm engine: of the matrix file, and of the user's own."""

import pytest

from allranks.errors import MatrixError
from allranks.matrix.model import Slurm
from allranks.matrix.slurm_settings import with_user_file


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
