"""``allranks completion``, in real shells."""

import shutil
import subprocess
import sys

import pytest

from allranks.commands.completion import _SHELLS


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs lines in a shell whose path has the command."""
    pytest.importorskip("shtab")
    command = tmp_path / "bin" / "allranks"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m allranks "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")

    def run(name, *lines):
        done = subprocess.run([name, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


LOAD = 'eval "$(allranks completion bash)"'
ASK = """
function=$(complete -p allranks | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "$function"; echo "${COMPREPLY[@]}"
"""


def test_bash_knows_what_completes_the_command(shell):
    assert shell("bash", LOAD, "complete -p allranks").endswith(" allranks\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("allranks pl", {"plan"}),
        ("allranks run --eng", {"--engine"}),
        ("allranks run --engine d", {"docker"}),
        ("allranks merge --policy s", {"skip"}),
        ("allranks completion ''", {"bash", "zsh"}),
        ("allranks run gloo-w2", {"gloo-w2-g0-env"}),
        ("allranks run suite", {"suite"}),
        ("allranks run --results s", {"suite"}),
    ],
)
def test_bash_completes_commands_options_values_cells_and_files(shell, words, expected):
    assert set(shell("bash", LOAD, f"COMP_WORDS=({words})", ASK).split()) == expected


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh")
def test_zsh_can_read_its_script(shell, tmp_path):
    script = tmp_path / "_allranks"
    script.write_text(shell("sh", "allranks completion zsh"))
    shell("zsh", f"zsh -n {script}")


def test_each_shell_has_a_script_of_its_own(allranks):
    pytest.importorskip("shtab")
    scripts = [allranks("completion", name)[1] for name in _SHELLS]
    assert "complete -" in scripts[0]
    assert scripts[1].startswith("#compdef allranks\n")


def test_without_shtab_the_error_says_what_to_install(allranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, out, err = allranks("completion", "bash")
    assert (code, out) == (2, "")
    assert "pip install 'allranks[completion]'" in err
