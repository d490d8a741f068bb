import io
import os
import tarfile
from pathlib import Path

import pytest

from allranks.engine.archive import ArchiveBuilder, unpack, walk
from allranks.engine.spec import FileCopy

OWNER = 10001


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name in ("test_a.py", "sub/test_b.py", "__pycache__/test_a.pyc", "sub/__pycache__/b.pyc", ".git/config"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def packed(*copies: FileCopy, prefix: str = "code") -> tarfile.TarFile:
    archive = ArchiveBuilder(OWNER)
    archive.add_folder("results")
    archive.add_secret("agent/config.json", b"{}")
    archive.add_copies(prefix, copies)
    return tarfile.open(fileobj=io.BytesIO(archive.finish().data))


def names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in walk(root)]


def test_every_entry_belongs_to_the_owner_by_number_alone(tree):
    with packed(FileCopy(source=tree, target=Path("suite"))) as archive:
        owners = {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in archive}
    assert owners == {(OWNER, OWNER, "", "")}


def test_every_folder_above_a_file_has_an_entry_of_its_own_before_it(tree):
    with packed(FileCopy(source=tree, target=Path("deep/suite"))) as archive:
        found = archive.getnames()
    assert found[:3] == ["results", "agent", "agent/config.json"]
    assert found[3:] == ["code", "code/deep", "code/deep/suite", "code/deep/suite/sub",
                         "code/deep/suite/sub/test_b.py", "code/deep/suite/test_a.py"]  # fmt: skip


def test_contents_arrive(tree):
    with packed(FileCopy(source=tree / "test_a.py", target=Path("x.py"))) as archive:
        assert archive.extractfile("code/x.py").read() == b"test_a.py"
        assert archive.extractfile("agent/config.json").read() == b"{}"


def test_caches_and_version_control_are_left_out(tree):
    assert names(tree) == ["sub/test_b.py", "test_a.py"]


def test_a_link_goes_in_as_what_it_leads_to(tree, tmp_path):
    (tmp_path / "outside.py").write_text("outside")
    (tree / "link.py").symlink_to(tmp_path / "outside.py")
    with packed(FileCopy(source=tree, target=Path("suite"))) as archive:
        assert archive.extractfile("code/suite/link.py").read() == b"outside"
        assert archive.getmember("code/suite/link.py").isfile()


def test_links_that_lead_upwards_or_nowhere_end(tree):
    (tree / "up").symlink_to(tree)
    (tree / "sub" / "up").symlink_to(tree)
    (tree / "self").symlink_to("self")
    (tree / "nowhere").symlink_to("missing")
    assert names(tree) == ["sub/test_b.py", "test_a.py"]


def test_what_is_no_file_is_left_out(tree):
    os.mkfifo(tree / "pipe")
    assert names(tree) == ["sub/test_b.py", "test_a.py"]


def hostile(*entries: tarfile.TarInfo) -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return [buffer.getvalue()]


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "bad",
    [
        entry("results/../../escaped"),
        entry("results/sub/../../escaped"),
        entry("results/../escaped", tarfile.DIRTYPE),
    ],
    ids=lambda info: info.name,
)
def test_unpacking_refuses_what_would_leave_the_folder(bad, tmp_path):
    into = tmp_path / "a" / "b"
    into.mkdir(parents=True)
    with pytest.raises(tarfile.TarError):
        unpack(hostile(bad), into)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not (tmp_path / "a" / "escaped").exists()


@pytest.mark.parametrize(
    "special",
    [
        entry("results/it", tarfile.SYMTYPE, "/etc/passwd"),
        entry("results/it", tarfile.SYMTYPE, "../../escaped"),
        entry("results/it", tarfile.LNKTYPE, "results/rank-0.xml"),
        entry("results/it", tarfile.CHRTYPE),
        entry("results/it", tarfile.BLKTYPE),
        entry("results/it", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.type} {info.linkname}",
)
def test_unpacking_leaves_out_what_is_no_file_and_keeps_the_rest(special, tmp_path):
    unpack(hostile(entry("results/rank-0.xml"), special, entry("results/rank-1.xml")), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.xml", "rank-1.xml"]


def test_a_file_below_a_link_of_the_archive_lands_inside(tmp_path):
    unpack(hostile(entry("results/link", tarfile.SYMTYPE, "/tmp"), entry("results/link/file")), tmp_path)
    assert (tmp_path / "link" / "file").is_file()
    assert not (tmp_path / "link").is_symlink()


def test_an_absolute_name_lands_inside(tmp_path):
    unpack(hostile(entry("/etc/hosts")), tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["etc/hosts"]


def test_unpacking_drops_the_first_component(tmp_path):
    unpack(hostile(entry("results", tarfile.DIRTYPE), entry("results/sub/rank-0.xml")), tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["sub/rank-0.xml"]


def test_what_is_unpacked_belongs_to_whoever_unpacks(tmp_path):
    strange = entry("results/file")
    strange.uid, strange.mode = OWNER, 0o6777
    unpack(hostile(strange), tmp_path)
    found = (tmp_path / "file").stat()
    assert found.st_uid == os.geteuid()
    assert not found.st_mode & 0o6022


def test_unpacking_reads_no_further_than_it_needs(tmp_path):
    [data] = hostile(entry("results/a"), entry("results/../../x"), *(entry(f"results/{n}") for n in range(200)))
    given = []

    def pieces():
        for start in range(0, len(data), 512):
            given.append(start)
            yield data[start : start + 512]

    with pytest.raises(tarfile.TarError):
        unpack(pieces(), tmp_path)
    assert (tmp_path / "a").exists()
    assert len(given) < 100


@pytest.mark.parametrize("size", [1, 7, 513, 1 << 20])
def test_unpacking_takes_pieces_of_any_size(size, tmp_path):
    [data] = hostile(*(entry(f"results/{n}") for n in range(5)))
    unpack((data[start : start + size] for start in range(0, len(data), size)), tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_cut_archive_is_an_error(tmp_path):
    big = entry("results/big")
    big.size = 5000
    [data] = hostile(big)
    with pytest.raises(tarfile.TarError):
        unpack([data[:2000]], tmp_path)
