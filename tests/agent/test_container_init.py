"""The first process of a container, between the engine and an agent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.agent import container_init as keeper_module
from allranks.engines.docker_requests import keeper_arguments
from allranks.protocol import records
from allranks.protocol.records import ContainerEnded

SOURCE = Path(__file__).parents[2] / "src" / "allranks"
KEPT = (
    "protocol/records.py",
    "protocol/outcomes.py",
    "protocol/choices.py",
    "protocol/rates.py",
    "protocol/repetitions.py",
    "protocol/skip_codes.py",
    "protocol/typed_json.py",
    "protocol/xml_text.py",
    "agent/clock.py",
    "agent/container_init.py",
    "agent/linux.py",
    "agent/record_stream.py",
)
COMMAND = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
if sys.argv[1:2] == ["keep"]:
    from allranks.agent import container_init
    container_init.main(sys.argv[2:])
"""


@pytest.fixture
def keeper(tmp_path):
    """Start a copy of the first process of a container whose agent is another program."""
    started = []

    def start(agent: str, grace: str = "6.0") -> subprocess.Popen:
        package = tmp_path / "allranks"
        command = package / "agent" / keeper_module.COMMAND.name
        command.parent.mkdir(parents=True)
        (package / "protocol").mkdir()
        for name in KEPT:
            text = (SOURCE / name).read_text()
            (package / name).write_text(text.replace("STOP_GRACE = 6.0", f"STOP_GRACE = {grace}"))
        command.write_text(COMMAND + agent)
        arguments = [str(command) if argument.endswith(command.name) else argument for argument in keeper_arguments(0)]
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def say(process: subprocess.Popen, line: bytes) -> None:
    process.stdin.write(line)
    process.stdin.flush()


def ended(process: subprocess.Popen) -> ContainerEnded:
    """The next record of the process."""
    line = next(line for line in process.stdout if line.startswith(b"\x1e"))
    record = records.decode(line[1:])
    assert isinstance(record, ContainerEnded)
    return record


def test_the_agent_reads_standard_input_itself(keeper):
    process = keeper("print(input(), flush=True)")
    say(process, b"begin\ngo\n")
    assert process.stdout.readline() == b"go\n"
    assert ended(process).status == 0


def test_an_agent_that_never_starts_exits(keeper):
    process = keeper("raise SystemExit(3)")
    process.stdin.close()
    assert process.wait(20) == 130


def test_the_files_are_kept_until_standard_input_ends(keeper):
    process = keeper("raise SystemExit(3)")
    say(process, b"begin\n")
    assert ended(process).status == 3
    assert process.poll() is None


def test_a_killed_agent_is_reported_with_its_signal(keeper):
    process = keeper("import os; os.kill(os.getpid(), 9)")
    say(process, b"begin\n")
    assert ended(process).status == -signal.SIGKILL


def test_an_unfinished_line_of_the_agent_does_not_hide_its_end(keeper):
    process = keeper("print('half a line', end='', flush=True)")
    say(process, b"begin\n")
    assert ended(process).status == 0


def test_orphans_of_the_agent_are_killed_before_its_end_is_reported(keeper):
    left = "import subprocess, sys; print(subprocess.Popen(['sleep', '300']).pid, flush=True)"
    process = keeper(left)
    say(process, b"begin\n")
    pid = int(process.stdout.readline())
    assert ended(process).status == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_agent_that_does_not_stop_at_the_end_of_its_input_is_killed(keeper):
    process = keeper("import time; print('here', flush=True); time.sleep(300)", grace="0.1")
    say(process, b"begin\n")
    assert process.stdout.readline() == b"here\n"
    process.stdin.close()
    assert ended(process).status == -signal.SIGKILL


def test_an_agent_that_ignores_a_termination_is_killed_and_its_files_are_kept(keeper):
    agent = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(300)"
    process = keeper(agent, grace="0.1")
    say(process, b"begin\n")
    assert process.stdout.readline() == b"here\n"
    process.terminate()
    assert ended(process).status == -signal.SIGKILL
    assert process.poll() is None


def test_a_termination_is_forwarded_to_the_agent(keeper):
    agent = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('here', flush=True); signal.pause()"
    process = keeper(agent)
    say(process, b"begin\n")
    assert process.stdout.readline() == b"here\n"
    process.terminate()
    assert ended(process).status == 7


def test_all_processes_are_killed_even_if_one_does_not_end(monkeypatch):
    killed, left = [], iter([frozenset({1, 2, 3})])
    monkeypatch.setattr(keeper_module.linux, "children", lambda: next(left, frozenset()))
    monkeypatch.setattr(keeper_module.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(keeper_module.linux, "reap", lambda _pid, _timeout: killed.append("waited"))
    keeper_module.end_orphans()
    assert sorted(killed[:3]) == [(pid, signal.SIGKILL) for pid in (1, 2, 3)]
