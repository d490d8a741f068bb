import os

import pytest

from allranks.images import sources
from allranks.images.sources import source_digest


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src/package").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "src/package/__init__.py").write_text("VALUE = 1\n")
    return folder


def test_a_changed_file_changes_the_digest(project):
    before = source_digest(project)
    (project / "src/package/__init__.py").write_text("VALUE = 2\n")
    assert source_digest(project) != before


def test_a_renamed_file_changes_the_digest(project):
    before = source_digest(project)
    (project / "src/package/__init__.py").rename(project / "src/package/main.py")
    assert source_digest(project) != before


def test_a_new_time_stamp_alone_does_not_change_the_digest(project):
    before = source_digest(project)
    os.utime(project / "pyproject.toml", (1, 1))
    assert source_digest(project) == before


@pytest.mark.parametrize(
    "path",
    [
        ".git/HEAD",
        ".coverage",
        "build/lib/x.py",
        "results/x.xml",
        "src/package/__pycache__/x.pyc",
        "src/p.egg-info/PKG-INFO",
    ],
)
def test_what_tools_leave_behind_does_not_change_the_digest(project, path):
    before = source_digest(project)
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    (project / path).write_text("x")
    assert source_digest(project) == before


def test_a_package_named_build_counts_below_the_top(project):
    before = source_digest(project)
    (project / "src/package/build").mkdir()
    (project / "src/package/build/x.py").write_text("x")
    assert source_digest(project) != before


@pytest.mark.parametrize("name", ["build", "dist", "results", "node_modules"])
def test_a_package_at_the_top_counts_whatever_its_name(project, name):
    (project / name).mkdir()
    (project / name / "__init__.py").touch()
    before = source_digest(project)
    (project / name / "x.py").write_text("x")
    assert source_digest(project) != before


def test_a_file_behind_a_linked_folder_counts(project, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (project / "src/linked").symlink_to(tmp_path / "elsewhere")
    before = source_digest(project)
    (tmp_path / "elsewhere/x.py").write_text("x")
    assert source_digest(project) != before


def test_folders_that_link_to_each_other_are_gone_round_once(project, monkeypatch):
    read = []
    monkeypatch.setattr(sources, "_content", lambda path: read.append(os.path.relpath(path, project)) or "")
    for folder, other in (("a", "b"), ("b", "a")):
        (project / folder).mkdir()
        (project / folder / "other").symlink_to(project / other)
        (project / folder / "x.py").touch()
    source_digest(project)
    assert [path for path in read if path.endswith("x.py")] == ["a/other/x.py", "a/x.py", "b/other/x.py", "b/x.py"]


@pytest.mark.parametrize("target", ["broken", "gone"])
def test_a_link_that_leads_nowhere_does_not_count(project, target):
    before = source_digest(project)
    (project / "src/broken").symlink_to(target)
    assert source_digest(project) == before


def test_a_virtual_environment_does_not_change_the_digest(project):
    before = source_digest(project)
    (project / "env").mkdir()
    (project / "env/pyvenv.cfg").touch()
    (project / "env/big.py").write_text("x")
    assert source_digest(project) == before


def test_a_link_to_a_parent_folder_ends(project):
    (project / "src/loop").symlink_to(project)
    assert source_digest(project)


def test_contents_are_not_read_again_when_nothing_was_touched(project, monkeypatch):
    before = source_digest(project)
    monkeypatch.setattr(sources, "_content", lambda path: pytest.fail(f"{path} was read"))
    assert source_digest(project) == before


def test_a_damaged_memory_is_read_over(project, own_cache):
    before = source_digest(project)
    for file in (own_cache / "allranks/projects").iterdir():
        file.write_text('{"stats": ')
    assert source_digest(project) == before


def test_an_unstable_project_is_built_anyway_and_its_newest_file_is_named(project):
    (project / "run.log").touch()
    os.utime(project / "run.log", (2e9, 2e9))
    tries, lines = [], []

    def build(source):
        tries.append(source)
        if len(tries) < 3:
            raise sources.change_error(project)
        return source

    sources.build_until_stable(project, build, lines.append)
    assert lines[0] == f"{project.name} changed while it was built (newest file: run.log). Trying again."
    assert lines[-1] == f"{project.name} changes with each build (newest file: run.log): only this run uses the result."
