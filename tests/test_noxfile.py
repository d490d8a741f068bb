"""The environments of this repository's sessions are created once and reused."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def noxfile(monkeypatch):
    """The module, as nox loads it."""
    for name in ("ALLRANKS_RUN_ID", "ALLRANKS_INVOCATION_ID"):  # which it sets
        monkeypatch.setenv(name, "a-test")
    monkeypatch.setattr("nox.registry._REGISTRY", {})
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Session:
    """A nox session whose environment is a folder, and whose pip records its arguments."""

    def __init__(self, folder):
        self.folder = folder
        self.installed = []
        self.virtualenv = SimpleNamespace(location=str(folder), create=folder.mkdir)

    def install(self, *arguments):
        self.installed.append(arguments)
        (self.folder / arguments[-1]).touch()


@pytest.fixture
def session(tmp_path):
    folder = tmp_path / "environment"
    folder.mkdir()
    return Session(folder)


def test_an_environment_is_used_again_without_pip(noxfile, session):
    for _ in range(2):
        noxfile._install(session, "pytest", apart=["coverage"])
    assert session.installed == [
        ("-e", ".", "pytest"),
        ("--no-deps", "--target", str(session.folder / "plugins"), "coverage"),
    ]


def test_another_content_has_an_environment_of_its_own(noxfile, session):
    noxfile._install(session, "pytest")
    noxfile._install(session, "hypothesis")
    assert session.installed == [("-e", ".", "pytest"), ("-e", ".", "hypothesis")]
    assert sorted(path.name for path in session.folder.iterdir()) == ["hypothesis", "installed.json"]


def test_another_project_file_has_an_environment_of_its_own(noxfile, session, tmp_path, monkeypatch):
    noxfile._install(session, "pytest")
    for name in ("pyproject.toml", "hatch_build.py"):
        (tmp_path / name).write_text("changed")
    monkeypatch.chdir(tmp_path)
    noxfile._install(session, "pytest")
    assert len(session.installed) == 2


def test_an_interrupted_installation_is_done_again(noxfile, session, monkeypatch):
    monkeypatch.setattr(session, "install", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        noxfile._install(session, "pytest")
    monkeypatch.undo()
    monkeypatch.chdir(ROOT)
    noxfile._install(session, "pytest")
    assert session.installed == [("-e", ".", "pytest")]
