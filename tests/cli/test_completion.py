"""``allranks --completion``, in real shells."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest
from long_lists import quick


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs lines in a shell with the command on its PATH."""
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


LOAD = 'eval "$(allranks --completion bash)"'
ASK = """
function=$(complete -p allranks | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "$function"; echo "${COMPREPLY[@]}"
"""


def test_the_bash_script_registers_the_completion(shell):
    assert shell("bash", LOAD, "complete -p allranks").endswith(" allranks\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    quick(
        1,
        [
            ("allranks pl", {"plan"}),
            ("allranks run --eng", {"--engine"}),
            ("allranks run --engine d", {"docker"}),
            ("allranks report --policy s", {"skip"}),
            ("allranks --completion ''", {"bash", "zsh"}),
            ("allranks run gloo-w2", {"gloo-w2-g0-env"}),
            ("allranks run suite", {"suite"}),
            ("allranks run --results s", {"suite"}),
        ],
    ),
)
def test_bash_completes_commands_options_values_cells_and_files(shell, words, expected):
    assert set(shell("bash", LOAD, f"COMP_WORDS=({words})", ASK).split()) == expected


LOAD_ZSH = 'autoload -U compinit; compinit -u -D; eval "$(allranks --completion zsh)"'


class Terminal:
    """A shell on a terminal."""

    def __init__(self, *command, folder):
        self._own, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PS1": "> ", "HOME": str(folder)}
        self.shell = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
        )
        os.close(theirs)

    def says(self, text, after):
        """Type text, and wait for the output."""
        os.write(self._own, after.encode())
        output, deadline = "", time.monotonic() + 30
        while text not in output:
            assert time.monotonic() < deadline, output
            if select.select([self._own], [], [], 1)[0]:
                output += os.read(self._own, 65536).decode(errors="replace")
        return output

    def close(self):
        self.shell.kill()
        self.shell.wait()
        os.close(self._own)


@pytest.mark.zsh
def test_zsh_completes_commands_options_and_cells(shell, tmp_path):
    assert shell("sh", "allranks --completion zsh")
    (tmp_path / "matrix.toml").write_text(
        '[matrix]\nbackend = ["gloo"]\nworld_size = [2]\n[suites.s]\npath = "bin"\n[images.cpu]\ntorch = "2.13.0"\n'
    )
    terminal = Terminal("zsh", "-f", "-i", folder=tmp_path)
    try:
        terminal.says("loaded 0", after=f"{LOAD_ZSH}; echo loaded $?\n")
        terminal.says("plan ", after="allranks pla\t")
        terminal.says("--engine ", after="\x15allranks run --eng\t")
        terminal.says("gloo-w2-g0-env ", after="\x15allranks run gloo-w2\t")
    finally:
        terminal.close()


def test_each_shell_has_its_own_script(allranks):
    scripts = [allranks("--completion", name)[1] for name in ("bash", "zsh")]
    assert "complete -" in scripts[0]
    assert scripts[1].startswith("#compdef allranks\n")


def test_without_shtab_the_error_says_what_to_install(allranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, out, err = allranks("--completion", "bash")
    assert (code, out) == (2, "")
    assert "pip install shtab" in err
