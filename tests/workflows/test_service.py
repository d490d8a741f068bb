"""The stand-in for GitHub's artifacts and caches has the traps of the real ones."""

import pytest
from service import ActionError, Service


@pytest.fixture
def service(tmp_path):
    return Service(tmp_path / "service")


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    (folder / "out" / ".caches").mkdir(parents=True)
    for name in ("out/a", "out/.hidden", "out/.caches/b"):
        (folder / name).write_text(name)
    return folder


def there(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_hidden_files_are_left_out_unless_asked_for(service, work):
    service.upload({"name": "x", "path": "out"}, 1, work)
    service.upload({"name": "all", "path": "out", "include-hidden-files": "true"}, 1, work)
    service.download({"name": "x", "path": "got"}, work)
    service.download({"name": "all", "path": "got-all"}, work)
    assert there(work / "got") == ["a"]
    assert there(work / "got-all") == [".caches/b", ".hidden", "a"]


def test_a_link_is_followed_and_what_it_leads_to_is_uploaded(service, work):
    (work / "secret").write_text("s")
    (work / "out" / "link").symlink_to(work / "secret")
    service.upload({"name": "x", "path": "out"}, 1, work)
    service.download({"name": "x", "path": "got"}, work)
    assert (work / "got" / "link").read_text() == "s"
    assert not (work / "got" / "link").is_symlink()


def test_a_name_is_taken_once_in_an_attempt_and_the_newest_is_downloaded(service, work):
    service.upload({"name": "x", "path": "out"}, 1, work)
    with pytest.raises(ActionError, match="already exists"):
        service.upload({"name": "x", "path": "out"}, 1, work)
    (work / "out" / "a").write_text("second")
    service.upload({"name": "x", "path": "out"}, 2, work)
    service.download({"name": "x", "path": "got"}, work)
    assert (work / "got" / "a").read_text() == "second"


def test_a_pattern_gives_each_of_several_artifacts_its_folder(service, work):
    service.upload({"name": "r-1", "path": "out"}, 1, work)
    service.upload({"name": "r-2", "path": "out"}, 1, work)
    service.upload({"name": "other", "path": "out"}, 1, work)
    service.download({"pattern": "r-*", "path": "got"}, work)
    assert there(work / "got") == ["r-1/a", "r-2/a"]


def test_the_only_artifact_that_a_pattern_finds_has_no_folder(service, work):
    service.upload({"name": "r-1", "path": "out"}, 1, work)
    service.upload({"name": "other", "path": "out"}, 1, work)
    service.download({"pattern": "r-*", "path": "got"}, work)
    assert there(work / "got") == ["a"]


def test_a_pattern_may_find_none_and_a_name_may_not(service, work):
    service.download({"pattern": "nothing-*", "path": "got"}, work)
    assert there(work) == ["out/.caches/b", "out/.hidden", "out/a"]
    with pytest.raises(ActionError, match="not found"):
        service.download({"name": "nothing", "path": "got"}, work)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"name": "x", "path": "none", "if-no-files-found": "error"}, "No files were found"),
        ({"name": "a/b", "path": "out"}, "name is not valid"),
        ({"name": "x", "path": "out", "overwrit": "true"}, "knows nothing of"),
    ],
)
def test_what_github_refuses_is_refused(service, work, inputs, message):
    with pytest.raises(ActionError, match=message):
        service.upload(inputs, 1, work)


def test_a_file_with_a_colon_in_its_name_is_refused(service, work):
    (work / "out" / "a:b").write_text("")
    with pytest.raises(ActionError, match="not valid"):
        service.upload({"name": "x", "path": "out"}, 1, work)


def test_several_patterns_keep_paths_below_what_they_have_in_common(service, work):
    (work / "out" / "junit-1.xml").write_text("")
    service.upload({"name": "x", "path": "out/junit*.xml\nout/a\nout/none"}, 1, work)
    service.download({"name": "x", "path": "got"}, work)
    assert there(work / "got") == ["a", "junit-1.xml"]


def test_a_cache_is_found_by_its_key_or_the_newest_prefix_and_never_overwritten(service, work):
    cached = {"path": "out/a", "key": "k-1"}
    assert service.restore(cached, work) is None
    service.save(cached, work)
    (work / "out" / "a").write_text("changed")
    service.save(cached, work)
    service.save({"path": "out/a", "key": "k-2"}, work)
    assert service.restore(cached, work) == "k-1"
    assert (work / "out" / "a").read_text() == "out/a"
    assert service.restore({"path": "out/a", "key": "k-3", "restore-keys": "k-"}, work) == "k-2"
    assert service.restore({"path": "out", "key": "k-1"}, work) is None
