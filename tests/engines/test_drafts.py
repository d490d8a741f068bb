"""Result files are copied completely or not at all."""

import io
import os
import tarfile
from itertools import chain

import pytest

from allranks.engines import agents
from allranks.engines.agents import collect_results
from allranks.engines.archive import unpack
from allranks.engines.result_files import draft_of


def fails(*_):
    yield b"o"
    raise OSError(28, os.strerror(28))


@pytest.fixture
def home(tmp_path):
    """A folder with a file that was written while the job ran."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "events-agent.jsonl").write_text("heard")
    return folder


def test_a_file_replaces_another_at_the_end(home):
    target = home / "events-agent.jsonl"
    with draft_of(target) as draft:
        draft.write_text("own")
        assert target.read_text() == "heard"
    assert target.read_text() == "own"
    assert list(home.iterdir()) == [target]


def test_a_full_disk_truncates_no_file_of_a_copied_folder(home, tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "events-agent.jsonl").write_text("own")
    monkeypatch.setattr(agents, "_pieces", fails)
    with pytest.raises(OSError, match="No space left"):
        collect_results([tmp_path / "results"], home)
    assert {path.name: path.read_text() for path in home.iterdir()} == {"events-agent.jsonl": "heard"}


def test_a_full_disk_truncates_no_file_of_an_archive(home):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("results/events-agent.jsonl")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"own"))
    header = data.getvalue()[: tarfile.BLOCKSIZE]
    with pytest.raises(OSError, match="No space left"):
        unpack(chain([header], fails()), home)
    assert {path.name: path.read_text() for path in home.iterdir()} == {"events-agent.jsonl": "heard"}
