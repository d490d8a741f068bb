import json

from allranks.plugins.slurm.agent import node_files
from allranks.plugins.slurm.agent.node_files import write_in_reserved_space, write_whole


def test_a_file_is_whole_and_its_owners_alone(tmp_path):
    write_whole(tmp_path / "x", "text")
    assert (tmp_path / "x").read_text() == "text"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_a_reserved_file_is_written_into_its_room_and_read_as_json(tmp_path):
    node_files.reserve(tmp_path / "placed.json")
    [draft] = tmp_path.iterdir()
    before = draft.stat()
    write_in_reserved_space(tmp_path / "placed.json", node_files.Placed(at=1.0, host="n1"))
    [whole] = tmp_path.iterdir()
    assert (whole.stat().st_ino, whole.stat().st_size) == (before.st_ino, before.st_size)
    assert json.loads(whole.read_text()) == {"at": 1.0, "host": "n1"}
