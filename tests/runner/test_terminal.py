"""The live table on a real pseudo-terminal, read by a terminal emulator."""

import fcntl
import json
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyte
import pytest

CHILD = Path(__file__).with_name("terminal_run.py")
ONE, TWO, THREE = "gloo-w1-g0-env/tiny", "gloo-w2-g0-env/tiny", "nccl-w2-g2-env/tiny"
LIMIT = 20.0
"""The timeout of a wait in a test, in seconds."""


@dataclass(kw_only=True)
class Terminal:
    """A terminal with a run on it.

    Attributes:
        master: The end of the pseudo-terminal where a person sits.
        words: The pipe that lets steps of the run go on.
    """

    process: subprocess.Popen
    master: int
    words: int
    screen: pyte.Screen
    raw: bytearray = field(default_factory=bytearray)
    _stream: pyte.ByteStream = field(init=False)

    def __post_init__(self):
        self._stream = pyte.ByteStream(self.screen)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines).rstrip()

    def wait_for(self, is_there):
        """Read output until a condition about the screen holds, or the run ends."""
        deadline = time.monotonic() + LIMIT
        while not is_there(self):
            assert self._read(deadline), f"the run ended before:\n{self.text}"

    def wait_for_end(self):
        deadline = time.monotonic() + LIMIT
        while self._read(deadline):
            pass
        return self.process.wait(LIMIT)

    def _read(self, deadline):
        ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"it never came:\n{self.text}"
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # Linux raises EIO if no process has the terminal open
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def go_on(self):
        os.write(self.words, b"go\n")

    def row(self, job_id):
        """The words in the row of a job in the table; empty if there is no such row."""
        found = [line.split() for line in self.lines if line.startswith(f"{job_id}  ")]
        return found[-1][1:] if found else []


@pytest.fixture
def start(repository, locks):
    """Starts a run on a terminal of some size."""

    @contextmanager
    def running(*arguments, size=(30, 140), **environment):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        words, own = os.pipe()
        # pytest-xdist sets the size of another terminal.
        outside = {name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}}
        process = subprocess.Popen(
            [sys.executable, CHILD, locks, str(words), *arguments],
            stdin=slave, stdout=slave, stderr=slave, cwd=repository, pass_fds=[words],
            env={**outside, "TERM": "xterm", "ALLRANKS_RUN_ID": "r1", **environment},
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        os.close(words)
        terminal = Terminal(process=process, master=master, words=own, screen=pyte.Screen(size[1], size[0]))
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(own)

    return running


CELLS = [each.partition("/")[0] for each in (ONE, TWO, THREE)]


def without_times(text):
    return re.sub(r"\d+\.\d+ (s|ms)", "T", re.sub(r" +", " ", text))


def test_the_table_shows_each_job_with_its_test_and_names_the_first_failure_while_the_run_goes_on(start):
    with start(*CELLS) as terminal:
        terminal.wait_for(lambda it: it.row(ONE)[:1] == ["running"] and "first failure" in it.text)
        terminal.wait_for(lambda it: it.row(TWO)[:1] == ["done"] and it.row(THREE)[:1] == ["running"])
        assert terminal.process.poll() is None
        # Two of three tests have ended, one of them has failed, and the third one is running.
        assert terminal.row(ONE)[1:3] == ["2/3", "1"]
        assert terminal.row(ONE)[-1] == "u"
        assert "0,1" in terminal.row(THREE)
        last = next(number for number, line in reversed(list(enumerate(terminal.lines))) if line)
        assert terminal.lines[last - 1].startswith("jobs: 2 running, 1 done; 1 failed; tests: 1 failed, 3 passed of 5;")
        assert terminal.lines[last] == f"{ONE}: rank 1 failed in suite/test_a.py::test_b[x]: no [bold]good"
        title = next(number for number, line in enumerate(terminal.lines) if line.startswith("job  "))
        assert all(line.startswith(("engine", "gloo", "nccl")) for line in terminal.lines[:title])
        assert terminal.screen.cursor.hidden
        terminal.go_on()
        terminal.wait_for(lambda it: it.row(ONE)[:1] == ["done"] or it.row(THREE)[:1] == ["done"])
        terminal.go_on()
        terminal.wait_for_end()


@pytest.mark.thorough
def test_the_final_screen_has_the_output_of_a_plain_run(start, repository):
    found = []
    for environment in ({}, {"TERM": "dumb"}):
        with start(CELLS[0], size=(40, 120), **environment) as terminal:
            terminal.go_on()
            code = terminal.wait_for_end()
        found.append((code, without_times(terminal.text)))
        assert not terminal.screen.cursor.hidden
        assert (b"\x1b" in terminal.raw) == (not environment)
        shutil.rmtree(repository / "results")
    assert found[0] == found[1]
    assert "exit code" in found[0][1]


def test_a_quiet_run_prints_only_problems_and_the_verdict(start):
    with start(CELLS[0], "-q", NO_COLOR="1") as terminal:
        terminal.go_on()
        terminal.wait_for_end()
    assert b"\x1b" not in terminal.raw
    first, *rest = terminal.text.splitlines()
    assert first.startswith(f"{ONE}: first failure: rank 1 failed in suite/test_a.py::test_b[x]")
    assert rest[-1].startswith("exit code 3: ")
    assert "First failures:" in rest
    assert "engine: scripted" not in terminal.text
    assert "running in" not in terminal.text


def test_ctrl_c_restores_the_terminal_and_prints_the_summary(start, repository):
    with start(CELLS[0], "--endless") as terminal:
        terminal.wait_for(lambda it: it.row(ONE)[:1] == ["running"])
        before = termios.tcgetattr(terminal.master)
        os.write(terminal.master, b"\x03")
        assert terminal.wait_for_end() == 130
        assert termios.tcgetattr(terminal.master) == before
    assert not terminal.screen.cursor.hidden
    assert terminal.row(ONE) == []
    assert "interrupted: this run's processes were stopped, and its containers removed" in terminal.text
    assert terminal.text.endswith("To run the remaining tests: allranks run --resume\nexit code 130: interrupted")
    record = json.loads(next(repository.glob("results/r1/cells/*/*/*/job.json")).read_text())
    assert record["error"]["kind"] == "interrupted"


def test_a_small_terminal_without_colors_shows_what_fits(start):
    with start(*CELLS, size=(6, 48), NO_COLOR="1") as terminal:
        # Two of three jobs fit: those that are running.
        terminal.wait_for(lambda it: it.row(ONE)[:1] == ["running"] and it.row(THREE)[:1] == ["running"])
        terminal.wait_for(lambda it: "1 done" in it.text and not it.row(TWO))
        for _ in range(2):
            terminal.go_on()
        terminal.wait_for_end()
    colours = re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw)
    assert not [each for each in colours if re.search(rb"\b[34]\d\b", each)]


@pytest.mark.thorough
def test_a_closed_terminal_interrupts_the_run(start, repository):
    with start(CELLS[0], "--endless") as terminal:
        terminal.wait_for(lambda it: it.row(ONE)[:1] == ["running"])
        os.close(terminal.master)
        try:
            assert terminal.process.wait(LIMIT) == 130
        finally:
            terminal.master = os.open(os.devnull, os.O_RDONLY)
    assert (repository / "results" / "r1" / "junit.xml").exists()
