"""Links that lead out of a repository never copy a file of the host into a job."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from fake_daemon import engine_of

from allranks.engines import archive as archive_module
from allranks.engines.archive import Archive, check_links, copy_files
from allranks.engines.base import FileCopy
from allranks.engines.docker_requests import USER
from allranks.errors import EngineError, ExitCode
from allranks.runner.earlier_runs import cache_files
from allranks.runner.request import files_of, lists_of

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def home(tmp_path):
    """Files of the host outside of the repository."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_rsa").write_text(KEY)
    return folder


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    for name in ("tests/test_a.py", "tests/unit/test_b.py", "data/values.json", "conftest.py", ".git/config"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def packed(copies):
    """The names and contents of the entries in an archive of these files."""
    archive = Archive(USER)
    archive.add_copies("code", copies)
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.pieces()))) as tar:
        return {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}


def of(repository, *wanted):
    return tuple(files_of(repository, tuple(map(Path, wanted)), repository))


def replaced(path, target):
    """Replace a file or folder by a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(path.with_name(f"was-{path.name}"))
    path.unlink(missing_ok=True)
    path.symlink_to(target)


OUT = {
    "a file": ("tests", {"tests/key.txt": "../../home/.ssh/id_rsa"}, "tests/key.txt"),
    "an absolute file": ("tests", {"tests/key.txt": "{home}/.ssh/id_rsa"}, "tests/key.txt"),
    "a folder": ("tests", {"tests/data": "{home}/.ssh"}, "tests/data"),
    "an empty folder": ("tests", {"tests/data": "{home}/empty"}, "tests/data"),
    "nothing": ("tests", {"tests/data": "{home}/missing"}, "tests/data"),
    "all of the host": ("tests", {"tests/root": "/"}, "tests/root"),
    "the folder above the repository": ("tests", {"tests/up": "../.."}, "tests/up"),
    "a chain": ("tests", {"tests/a": "b", "tests/b": "../data/c", "data/c": "{home}/.ssh/id_rsa"}, "tests/a"),
    "the suite itself": ("tests", {"tests": "{home}/.ssh"}, "tests"),
    "a suite that is a file": ("tests/test_a.py", {"tests/test_a.py": "{home}/.ssh/id_rsa"}, "tests/test_a.py"),
    "the middle of a suite's path": ("tests/.ssh/id_rsa", {"tests": "{home}"}, "tests"),
    "a folder by dots in the middle": ("tests", {"tests/up": "unit/../../../home/.ssh"}, "tests/up"),
    "a folder inside, and out by dots": ("tests/up/../../../home/.ssh", {"tests/up": "unit"}, None),
    "a configuration above the suite": ("tests", {"conftest.py": "{home}/.ssh/id_rsa"}, "conftest.py"),
    "a link behind a link inside": ("tests", {"tests/d": "../data", "data/x": "{home}/.ssh/id_rsa"}, "tests/d/x"),
    "version control": ("tests", {"tests/git": "../.git"}, "tests/git"),
    "a file of version control": ("tests", {"tests/git": "../.git/config"}, "tests/git"),
    "version control by name": (".git/config", {}, None),
    "a sibling whose name begins alike": ("tests", {"tests/x": "{home}/../repository-2"}, "tests/x"),
}


@pytest.mark.parametrize(("wanted", "links", "named"), OUT.values(), ids=list(OUT))
def test_what_leads_out_of_the_repository_is_refused_by_name(repository, home, wanted, links, named):
    (home / "empty").mkdir()
    (home.parent / "repository-2").mkdir()
    for link, target in links.items():
        replaced(repository / link, target.format(home=home))
    for use in (packed, check_links):
        with pytest.raises(EngineError, match="outside of the repository's files") as error:
            use(of(repository, wanted))
        assert error.value.exit_code == ExitCode.INFRASTRUCTURE
        assert error.value.remedy.startswith("Replace it with the files")
        if named:
            link = repository / named
            assert error.value.what.startswith(f"The link {link} leads to ")


IN = {
    "relative": ({"tests/values.json": "../data/values.json"}, "code/tests/values.json", "data/values.json"),
    "absolute": ({"tests/values.json": "{root}/data/values.json"}, "code/tests/values.json", "data/values.json"),
    "a folder": ({"tests/data": "../data"}, "code/tests/data/values.json", "data/values.json"),
    "a chain": ({"tests/a": "b", "tests/b": "../data"}, "code/tests/a/values.json", "data/values.json"),
    "by dots and back": ({"tests/a": "../../repository/data"}, "code/tests/a/values.json", "data/values.json"),
    "a folder that leads to a link": (
        {"tests/a": "../more", "more/x": "../data/values.json"}, "code/tests/a/x", "data/values.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("links", "name", "content"), IN.values(), ids=list(IN))
def test_links_inside_the_repository_go_in_as_what_they_lead_to(repository, links, name, content):
    for link, target in links.items():
        replaced(repository / link, target.format(root=repository))
    assert packed(of(repository, "tests"))[name] == content


def test_links_to_nothing_inside_are_left_out(repository):
    replaced(repository / "tests/gone", "../data/missing")
    replaced(repository / "tests/.#test_a.py", "me@host.4711:1700000000")  # the lock of an editor
    replaced(repository / "tests/self", "self")
    assert set(packed(of(repository, "tests"))) == {
        "code/conftest.py",
        "code/tests/test_a.py",
        "code/tests/unit/test_b.py",
    }


def test_a_repository_behind_a_link_is_the_repository(repository, tmp_path):
    (tmp_path / "link").symlink_to(repository)
    replaced(repository / "tests/a", tmp_path / "link" / "data")
    assert "code/tests/a/values.json" in packed(of((tmp_path / "link").resolve(), "tests"))


def test_a_hard_link_is_a_file(repository):
    os.link(repository / "data/values.json", repository / "tests/values.json")
    assert packed(of(repository, "tests", "data"))["code/tests/values.json"] == "data/values.json"


def test_virtual_environments_are_left_out_and_their_links_need_no_remedy(repository, home):
    replaced(repository / "tests/.venv/bin/python", home / ".ssh/id_rsa")
    (repository / "tests/.venv/pyvenv.cfg").touch()
    assert not any(".venv" in name for name in packed(of(repository, "tests")))


@pytest.mark.parametrize("place", ["tests/test_a.py", "tests/unit"])
def test_a_link_that_replaces_what_was_checked_brings_nothing_in(repository, home, place, monkeypatch):
    """A program that writes to the repository during the copy could win a race."""
    (home / ".ssh" / "test_b.py").write_text(KEY)
    walk = archive_module.walk

    def late(source, root=None, above=frozenset()):
        for path in list(walk(source, root, above)):
            if path.is_relative_to(repository / place) and not (repository / place).is_symlink():
                target = home / ".ssh" / ("id_rsa" if path == repository / place else "")
                replaced(repository / place, target)
            yield path

    monkeypatch.setattr(archive_module, "walk", late)
    with pytest.raises(EngineError, match="outside of the repository's files"):
        packed(of(repository, "tests"))


def test_a_rejected_job_sends_no_request_to_the_daemon(fake, make_spec, repository, home):
    replaced(repository / "tests/data", home / ".ssh")
    client = fake()
    spec = make_spec(image="i", code=repository, files=of(repository, "tests"))
    with pytest.raises(EngineError, match=r"The link .*tests/data leads to .*\.ssh"), engine_of(client).start(spec):
        pass
    assert client.calls == []


@pytest.mark.parametrize("link", ["results/.cache/c/s/v/key", "results/.cache/c/s", "results/.cache"])
def test_a_cache_that_is_part_of_the_repository_brings_in_nothing_of_the_host(repository, home, tmp_path, link):
    cache = repository / "results/.cache/c/s"
    (home / "c/s").mkdir(parents=True)
    (home / "c/s/key").write_text(KEY)
    replaced(repository / link, {"key": home / ".ssh/id_rsa", "s": home / ".ssh", ".cache": home}[Path(link).name])
    [copy] = cache_files(cache, repository / "results")
    for use in (lambda: packed([copy]), lambda: copy_files(copy, tmp_path / "job")):
        with pytest.raises(EngineError, match="outside of the repository's files"):
            use()
    assert not any(path.is_file() for path in (tmp_path / "job").rglob("*"))


LISTED = [
    ("repository/disabled.json", {"disabled.json": "{home}/.ssh/id_rsa"}),
    ("repository/ci/id_rsa", {"ci": "{home}/.ssh"}),
    ("link/disabled.json", {"disabled.json": "{home}/.ssh/id_rsa"}),
]


@pytest.mark.parametrize(("named", "links"), LISTED)
def test_a_list_of_tests_in_the_repository_may_not_lead_out(repository, home, named, links):
    (home.parent / "link").symlink_to(repository)
    for place, target in links.items():
        replaced(repository / place, target.format(home=home))
    with pytest.raises(EngineError, match="outside of the repository's files"):
        packed(lists_of({"DISABLED_TESTS_FILE": str(home.parent / named)}, repository))


@pytest.mark.parametrize("named", ["repository/data/values.json", "repository/link.json", "home/.ssh/id_rsa"])
def test_other_lists_of_tests_are_copied_wherever_the_user_keeps_them(repository, home, named):
    replaced(repository / "link.json", "data/values.json")
    assert len(packed(lists_of({"DISABLED_TESTS_FILE": str(home.parent / named)}, repository))) == 1


def test_files_of_allranks_may_be_links_into_a_cache(tmp_path, home):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "module.py").symlink_to(home / ".ssh/id_rsa")
    copy = FileCopy(source=tmp_path / "site-packages", target=Path("allranks"))
    assert packed([copy]) == {"code/allranks/module.py": KEY}
