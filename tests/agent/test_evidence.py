"""Files that a test has replaced by something else: the supervisor neither blocks nor fails."""

import os
import socket
from pathlib import Path

import pytest

from allranks.agent import evidence


def put_link(path, target):
    path.symlink_to(target)


def put_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.fixture
def somewhere(tmp_path):
    path = tmp_path / "somewhere"
    path.write_text("else")
    return path


@pytest.fixture(
    params=["fifo", "folder", "circle", "outside", "endless", "socket", "absent folder", "no path"],
)
def not_a_file(request, tmp_path, somewhere, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("file")
    match request.param:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "circle":
            put_link(path, path)
        case "outside":
            put_link(path, somewhere)
        case "endless":
            put_link(path, "/dev/zero")
        case "socket":
            put_socket(path)
        case "absent folder":
            path = path / "file"
        case "no path":
            path = Path("a\0b")
    return path


def test_only_regular_files_are_read_or_written(not_a_file, somewhere):
    assert evidence.size_of(not_a_file) == 0
    evidence.append(not_a_file, b"text", 100)
    os.close(evidence.open_end(not_a_file))
    assert evidence.read(not_a_file) == ""
    assert somewhere.read_text() == "else"


def test_a_file_is_cut_at_its_limit_with_a_notice(tmp_path):
    path = tmp_path / "file"
    evidence.append(path, b"12345", 8)
    evidence.append(path, b"67890", 8)
    evidence.append(path, b"more", 8)
    assert path.read_text() == "12345678\n--- this file has reached its limit ---\n"


def test_a_file_is_read_from_an_offset_and_at_most_its_end(tmp_path, monkeypatch):
    path = tmp_path / "file"
    assert evidence.read(path) == ""
    path.write_bytes(b"0123456789\xff")
    assert (evidence.size_of(path), evidence.read(path, 8)) == (11, "89\ufffd")
    monkeypatch.setattr(evidence, "MOST_READ", 4)
    assert evidence.read(path) == "789\ufffd"


def test_only_the_end_of_a_file_is_read(tmp_path):
    file, fifo = tmp_path / "log", tmp_path / "fifo"
    file.write_text("0123456789")
    os.mkfifo(fifo)
    read = [evidence.read_end(path, size) for path, size in ((file, 3), (file, 99), (fifo, 3), (tmp_path / "no", 3))]
    assert read == ["789", "0123456789", "", ""]
