import io
import os
import tarfile
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.engines import result_files
from allranks.engines.archive import Archive, unpack, walk
from allranks.engines.base import FileCopy
from allranks.errors import EngineError

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
    archive = Archive(OWNER)
    archive.add_folder("results")
    archive.add_secret("agent/config.json", b"{}")
    archive.add_copies(prefix, copies)
    return tarfile.open(fileobj=io.BytesIO(b"".join(archive.pieces())))


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


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path):
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(256 << 20)
    archive = Archive(OWNER)
    archive.add_copies("code", [FileCopy(source=big, target=Path("big"))])
    tracemalloc.start()
    try:
        assert sum(map(len, archive.pieces())) == (256 << 20) + 3 * 512 + 1024 - 512
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def sent_during_a_change(tree: Path, text: str) -> bytes:
    archive = Archive(OWNER)
    archive.add_copies("code", [FileCopy(source=tree, target=Path("suite"))])
    sent = []
    for piece in archive.pieces():
        sent.append(piece)
        if b"test_b.py" in piece[:100]:  # its header
            (tree / "sub" / "test_b.py").write_text(text)
    return b"".join(sent)


def test_a_file_that_grows_while_it_is_sent_spoils_nothing_behind_it(tree):
    with tarfile.open(fileobj=io.BytesIO(sent_during_a_change(tree, "sub/test_b.py and more"))) as archive:
        assert archive.extractfile("code/suite/sub/test_b.py").read() == b"sub/test_b.py"
        assert archive.extractfile("code/suite/test_a.py").read() == b"test_a.py"


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(tree):
    with pytest.raises(OSError, match="became shorter"):
        sent_during_a_change(tree, "")


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


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
        entry("results/it", tarfile.LNKTYPE, "results/rank-0.log"),
        entry("results/it", tarfile.CHRTYPE),
        entry("results/it", tarfile.BLKTYPE),
        entry("results/it", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.type} {info.linkname}",
)
def test_unpacking_leaves_out_what_is_no_file_and_keeps_the_rest(special, tmp_path):
    unpack(hostile(entry("results/rank-0.log"), special, entry("results/rank-1.log")), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.log", "rank-1.log"]


def test_a_file_below_a_link_of_the_archive_lands_inside(tmp_path):
    unpack(hostile(entry("results/link", tarfile.SYMTYPE, "/tmp"), entry("results/link/file")), tmp_path)
    assert (tmp_path / "link" / "file").is_file()
    assert not (tmp_path / "link").is_symlink()


def test_an_absolute_name_lands_inside(tmp_path):
    unpack(hostile(entry("/etc/hosts")), tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["etc/hosts"]


def test_unpacking_drops_the_first_component(tmp_path):
    unpack(hostile(entry("results", tarfile.DIRTYPE), entry("results/sub/rank-0.log")), tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["sub/rank-0.log"]


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


def test_a_file_instead_of_the_folder_itself_is_left_out_and_reported(tmp_path):
    into = tmp_path / "attempt-1"
    into.mkdir()
    with pytest.raises(EngineError):
        unpack(hostile(entry("results"), entry("results/a")), into)
    assert content(tmp_path) == {"attempt-1/a": b"x"}


def test_entries_after_a_file_instead_of_a_folder_are_unpacked(tmp_path):
    with pytest.raises(EngineError, match=r"same name\. Left out: 'a/b' \(1 bytes\), 'c' \(1 bytes\)\."):
        unpack(hostile(*(entry(f"results/{name}") for name in ("a", "a/b", "c/d", "c", "e"))), tmp_path)
    assert content(tmp_path) == {"a": b"x", "c/d": b"x", "e": b"x"}


def sized(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_files_over_the_limit_are_reported_with_the_largest_first(tmp_path):
    sizes = {"a": 600, "b": 1500, "c": 300, "d": 101, "e": 100, "f": 300}
    with pytest.raises(EngineError) as raised:
        unpack(hostile(*(sized(f"results/{name}", size) for name, size in sizes.items())), tmp_path, 1000)
    assert {name: len(data) for name, data in content(tmp_path).items()} == {"a": 600, "c": 300, "e": 100}
    assert raised.value.what == (
        "The job's results exceed the limit of 1,000 bytes. Left out: "
        "'b' (1,500 bytes), 'f' (300 bytes), 'd' (101 bytes)."
    )
    assert "ALLRANKS_SHARED" in raised.value.remedy


def claiming(size: int) -> bytes:
    """The header of a file of this size, without content."""
    return sized("results/huge", size).tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("size", [5 << 30, 1 << 62, 1 << 80])
def test_an_archive_is_not_read_to_the_end_of_a_file_that_is_far_too_large(size, tmp_path):
    given = 0

    def pieces():
        nonlocal given
        yield claiming(size)
        while True:
            given += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(EngineError, match=r"exceed the limit of 4 MiB\. Left out: 'huge' \(") as raised:
        unpack(pieces(), tmp_path, 4 << 20)
    assert "Later files were not read." in raised.value.why
    assert given <= 12 << 20
    assert content(tmp_path) == {}


def test_entries_are_counted_and_those_over_the_limit_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(result_files, "MOST_ENTRIES", 4)
    with pytest.raises(EngineError, match=r"more than 4 files and folders\. Left out: 'e3'"):
        unpack(hostile(entry("results", tarfile.DIRTYPE), *(entry(f"results/e{n}") for n in range(9))), tmp_path)
    assert set(content(tmp_path)) == {"e0", "e1", "e2"}


@pytest.mark.parametrize("name", ["n" * 256, "/".join("n" * 200 for _ in range(6)), "/".join("n" * 34)])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_invalid_names_are_reported_and_other_files_are_unpacked(name, form, tmp_path):
    data = b"".join(sized(f"results/{part}", 0).tobuf(form) for part in ("a", name, "b")) + bytes(1024)
    with pytest.raises(EngineError, match="names over 255 bytes"):
        unpack([data], tmp_path)
    assert set(content(tmp_path)) == {"a", "b"}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_both_kinds_are_whole(form, tmp_path):
    name = "/".join(("d" * 120, "ä" * 60, "f" * 200))
    unpack([sized(f"results/{name}", 0).tobuf(form) + sized("results/next", 0).tobuf(form) + bytes(1024)], tmp_path)
    assert set(content(tmp_path)) == {name, "next"}


def test_a_zero_in_a_name_ends_nothing(tmp_path):
    info = tarfile.TarInfo("results/x")
    info.pax_headers = {"path": "results/a\0b"}
    with pytest.raises(EngineError, match="Left out"):
        unpack([info.tobuf(tarfile.PAX_FORMAT) + sized("results/y", 0).tobuf() + bytes(1024)], tmp_path)
    assert set(content(tmp_path)) == {"y"}


@pytest.mark.parametrize(
    "name", ["job.json", "rank-0.xml", "journal.jsonl", "journal.jsonl/x", ".latest", ".x/y", "sub/.allranks.part"]
)
def test_names_that_the_host_writes_itself_never_come_from_a_job(name, tmp_path):
    first = name.split("/", maxsplit=1)[0]
    with pytest.raises(EngineError, match="names that allranks reserves for itself"):
        unpack(hostile(entry(f"results/{name}"), entry("results/rank-0.log"), entry("results/sub/job.json")), tmp_path)
    assert set(content(tmp_path)) == {"rank-0.log", "sub/job.json"}
    assert not (tmp_path / first).is_file()


def test_a_header_may_not_claim_the_memory_of_this_host(tmp_path):
    header = sized("x", 1 << 40)
    header.type = tarfile.XHDTYPE
    with pytest.raises(tarfile.TarError, match="a header has"):
        unpack([header.tobuf(tarfile.GNU_FORMAT), *(bytes(1 << 20) for _ in range(4))], tmp_path)


def test_an_archive_without_its_end_is_an_error_that_leaves_what_there_is(tmp_path):
    [data] = hostile(entry("results/a"), entry("results/b"))
    with pytest.raises(tarfile.TarError, match="unexpected end"):
        unpack([data[:2048]], tmp_path)
    assert set(content(tmp_path)) == {"a", "b"}


SMALL = b"".join(
    [
        sized("results", 0).tobuf(),
        sized(f"results/{'long' * 40}", 0).tobuf(tarfile.PAX_FORMAT),
        sized(f"results/{'gnu' * 50}", 0).tobuf(tarfile.GNU_FORMAT),
        sized("results/sub/rank-0.log", 3).tobuf() + b"abc".ljust(512, b"\0"),
        bytes(1024),
    ]
)


def outcome_of(data: bytes, tmp_path: Path) -> str:
    """The type of the error of unpacking, if any; unexpected errors fail the test."""
    with TemporaryDirectory(dir=tmp_path) as scratch:
        into = Path(scratch, "run", "attempt-1")
        into.mkdir(parents=True)
        outcome = ""
        try:
            unpack([data], into, 4096)
        except (tarfile.TarError, EngineError) as error:
            outcome = type(error).__name__
        outside = [path for path in Path(scratch).rglob("*") if into not in path.parents]
        assert outside == [into.parent, into]
        assert all(path.is_file() or path.is_dir() for path in into.rglob("*"))
        assert sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) <= 4096
        return outcome


@pytest.mark.thorough
def test_an_archive_that_is_cut_at_any_byte_is_an_error_and_nothing_else(tmp_path):
    assert {outcome_of(SMALL[:end], tmp_path) for end in range(0, len(SMALL) - 1024, 13)} <= {
        "ReadError",
        "EngineError",
    }


@pytest.mark.thorough
def test_an_archive_that_is_damaged_at_any_byte_is_an_error_or_files_and_nothing_else(tmp_path):
    places = [place for place, value in enumerate(SMALL) if value or place % 61 == 0]
    found = {
        outcome_of(SMALL[:place] + bytes([SMALL[place] ^ change]) + SMALL[place + 1 :], tmp_path)
        for place in places
        for change in (1, 0xFF)
    }
    assert found >= {"EngineError"}
    assert found <= {"EngineError", "ReadError", "InvalidHeaderError", "ExtractError"}


def numbers(width: int) -> st.SearchStrategy[bytes]:
    octal = st.integers(0, 8 ** (width - 1) - 1).map(lambda value: b"%0*o\0" % (width - 1, value))
    base_256 = st.integers(-(256 ** (width - 1)), 256 ** (width - 1) - 1).map(
        lambda value: (b"\x80" if value >= 0 else b"\xff") + (value % 256 ** (width - 1)).to_bytes(width - 1, "big")
    )
    small = st.integers(0, 1500).map(lambda value: b"%0*o\0" % (width - 1, value))
    return st.one_of(small, octal, base_256, st.binary(min_size=width, max_size=width))


def names_of_entries() -> st.SearchStrategy[bytes]:
    parts = st.sampled_from([b"results", b"..", b".", b"", b"a", b"job.json", b".x", b"\xff\xfe", b"n" * 99])
    return st.lists(parts, max_size=5).map(b"/".join)


def pax_contents() -> st.SearchStrategy[bytes]:
    keys = st.sampled_from([b"path", b"size", b"GNU.sparse.realsize", b"GNU.sparse.map", b"linkpath", b"mtime"])
    values = st.one_of(names_of_entries(), st.integers(-9, 10**40).map(b"%d".__mod__), st.binary(max_size=9))

    def record(pair):
        body = b" %s=%s\n" % pair
        return b"%d%s" % (len(body) + len(str(len(body) + 2)), body)

    return st.lists(st.tuples(keys, values).map(record), max_size=3).map(b"".join) | st.binary(max_size=40)


@st.composite
def any_entries(draw):
    """A header with a valid checksum, followed by data that may be its content."""
    kind = draw(
        st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"x", b"g", b"X", b"L", b"K", b"?"])
    )
    content = draw(pax_contents() if kind in b"xgX" else st.binary(max_size=600) | names_of_entries())
    size = draw(st.just(b"%011o\0" % len(content)) | numbers(12))
    fields = [draw(names_of_entries())[:100].ljust(100, b"\0"), *[b"0000644\0"] * 3, size]
    rest = draw(st.sampled_from([b"ustar\x0000", b"ustar  \0", b"\xff" * 255])).ljust(255, b"\0")
    block = (
        b"".join(fields) + b"%011o\0" % 0 + b" " * 8 + kind + draw(names_of_entries())[:100].ljust(100, b"\0") + rest
    )
    block = block[:512].ljust(512, b"\0")
    block = block[:148] + b"%06o\0 " % sum(block) + block[156:]
    return block + content.ljust(-(-len(content) // 512) * 512, b"\0")


@given(st.lists(any_entries(), max_size=5), st.sampled_from([b"", bytes(512), bytes(1024)]))
def test_any_entries_at_all_are_an_error_or_files_and_nothing_else(tmp_path_factory, entries, end):
    outcome_of(b"".join(entries) + end, tmp_path_factory.getbasetemp())


def test_a_piece_is_never_copied_as_a_whole(tmp_path):
    [data] = hostile(sized("results/a", 8 << 20), sized("results/b", 8 << 20))
    tracemalloc.start()
    try:
        unpack([data], tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
