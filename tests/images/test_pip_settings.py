"""Which settings of the host's pip are part of cache keys."""

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from long_lists import quick

from allranks.images import pip_settings
from allranks.images.pip_settings import requirement_texts, with_variables, without_logins

ASK = pip_settings._query


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Only the test's own configuration."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    of_the_host()
    monkeypatch.setattr(pip_settings, "_query", ask)


@cache
def of_the_host():
    """The settings in global files of the host, which tests cannot hide."""
    return ASK(sys.executable)[1]


def ask(python):
    files, found = ASK(python)
    return files, [setting for setting in found if setting not in of_the_host()]


def settings(folder):
    return pip_settings.pip_settings(folder, sys.executable)


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.thorough
def test_a_host_without_configuration_has_no_settings(tmp_path):
    assert settings(tmp_path) == ()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "value"),
    quick(
        3,
        [
            ("PIP_INDEX_URL", "https://example.org/simple"),
            ("PIP_EXTRA_INDEX_URL", "https://example.org/simple"),
            ("PIP_FIND_LINKS", "/wheels"),
            ("PIP_NO_INDEX", "1"),
            ("PIP_PRE", "1"),
            ("PIP_ONLY_BINARY", ":all:"),
            ("PIP_REQUIRE_HASHES", "1"),
            ("PIP_CONSTRAINT", "/limits.txt"),
            ("PIP_AN_OPTION_OF_THE_FUTURE", "x"),
        ],
    ),
)
def test_a_variable_that_decides_what_is_installed_counts(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert len(settings(tmp_path)) == 1


@pytest.mark.parametrize(
    "name", quick(1, ["PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_NO_INPUT", "PIP_CACHE_DIR"])
)
def test_one_that_does_not_is_left_out(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert settings(tmp_path) == ()


@pytest.mark.parametrize("place", quick(1, ["system/pip/pip.conf", "home/.pip/pip.conf", "config/pip/pip.conf"]))
def test_each_file_that_pip_reads_counts(tmp_path, place):
    write(tmp_path / place, "[global]\nindex_url = https://example.org/simple\ntimeout = 3\n")
    assert settings(tmp_path) == ("global.index-url=https://example.org/simple",)


@pytest.mark.thorough
def test_pip_is_asked_once_until_a_file_or_a_variable_changes(tmp_path, monkeypatch):
    queried = []
    ask_pip = pip_settings._query
    monkeypatch.setattr(pip_settings, "_query", lambda python: queried.append(python) or ask_pip(python))
    own = tmp_path / "home/.pip/pip.conf"
    assert settings(tmp_path) == settings(tmp_path) == ()
    write(own, "[global]\npre = 1\n")
    assert settings(tmp_path) == settings(tmp_path) == ("global.pre=1",)
    write(own, "[global]\npre = 0\n")
    assert settings(tmp_path) == ("global.pre=0",)
    monkeypatch.setenv("PIP_PRE", "1")
    assert settings(tmp_path) == (".pre=1", "global.pre=0")
    assert len(queried) == 4


@pytest.mark.thorough
def test_no_login_is_kept(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:s3cret@example.org/simple")
    settings(tmp_path)
    [kept] = (own_cache / "allranks" / "pip").iterdir()
    assert "index-url" in kept.read_text()
    assert "s3cret" not in kept.read_text()


def test_a_python_without_pip_has_no_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_PRE", "1")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named pip\nexit 1\n")
    python.chmod(0o755)
    assert pip_settings.pip_settings(tmp_path, str(python)) == ()


@pytest.mark.thorough
def test_a_configured_file_replaces_that_of_the_user(tmp_path, monkeypatch):
    write(tmp_path / "home/.pip/pip.conf", "[global]\npre = 1\n")
    write(tmp_path / "own.conf", "[install]\nfind-links =\n    /a\n    /b\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "own.conf"))
    assert settings(tmp_path) == ("install.find-links=/a /b",)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert settings(tmp_path) == ()


def test_a_file_that_pip_cannot_read_is_left_to_pip(tmp_path):
    write(tmp_path / "system/pip/pip.conf", "no section\n")
    (tmp_path / "home/.pip/pip.conf").mkdir(parents=True)
    assert settings(tmp_path) == ()


@pytest.mark.thorough
def test_links_relative_to_a_project_are_those_of_that_project(monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels https://example.org/x")
    assert settings(Path("/one")) == (".find-links=/one/wheels https://example.org/x",)


@pytest.mark.thorough
def test_the_text_of_constraints_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONSTRAINT", "limits.txt")
    write(tmp_path / "limits.txt", "numpy<2\n-c more.txt\n")
    write(tmp_path / "more.txt", "six<2\n")
    assert settings(tmp_path) == (".constraint=numpy<2\n-c more.txt\n\nsix<2\n",)


@pytest.mark.thorough
def test_a_login_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:s3cret@example.org/simple")
    assert settings(tmp_path) == (".index-url=https://****@example.org/simple",)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pass@host/x", "https://****@host/x"),
        ("git+ssh://git@host/x", "git+ssh://****@host/x"),
        ("foo @ https://host/foo@1.whl", "foo @ https://host/foo@1.whl"),
        ("https://host me@x", "https://host me@x"),
    ],
)
def test_logins_are_hidden(text, shown):
    assert without_logins(text) == shown


def test_variables_are_read_as_pip_reads_them(monkeypatch):
    monkeypatch.setenv("HOST", "example.org")
    assert with_variables("https://${HOST}/${GONE}/$HOST/${host}") == "https://example.org/${GONE}/$HOST/${host}"


@pytest.mark.parametrize(
    "line", ["-r more.txt", "-rmore.txt", "-c more.txt", "--requirement=more.txt", '--constraint "more.txt"  # why']
)
def test_the_text_of_each_included_file_counts_once(tmp_path, line):
    write(tmp_path / "all.txt", f"numpy\n{line}\n{line}\n")
    write(tmp_path / "more.txt", "six\n-r all.txt\n")
    assert requirement_texts(tmp_path / "all.txt") == [f"numpy\n{line}\n{line}\n", "six\n-r all.txt\n"]


@pytest.mark.parametrize(
    "option", ["--find-links wheels", "-f wheels", "--index-url=wheels", "--extra-index-url wheels"]
)
def test_a_folder_that_a_file_names_relative_to_itself_counts_in_full(tmp_path, option):
    (tmp_path / "wheels").mkdir()
    write(tmp_path / "all.txt", f"{option}\n")
    assert requirement_texts(tmp_path / "all.txt")[1].endswith(f" {tmp_path}/wheels")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "all.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_bytes(b"\xff")
    with pytest.raises(OSError, match=r"more\.txt") as error:
        requirement_texts(tmp_path / "all.txt")
    assert error.value.filename == str(tmp_path / "more.txt")
