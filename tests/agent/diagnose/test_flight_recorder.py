import os
import subprocess
import sys

import pytest

from allranks.agent.diagnose.flight_recorder import FlightRecorder


@pytest.fixture
def recorder(tmp_path):
    for name in ("results", "shared"):
        (tmp_path / name).mkdir()
    return FlightRecorder(results=tmp_path / "results", shared=tmp_path / "shared", gang=3)


def names(recorder, version, present=()):
    return set(recorder.environment(version, dict.fromkeys(present, "mine")))


PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"
OLD = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
NEW = "TORCH_FR_DUMP_TEMP_FILE"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.5.1", {PIPE, OLD, SIZE, DUMP}),
        ("2.8.0+cu126", {PIPE, NEW, SIZE, DUMP}),
        ("2.13.0", {PIPE, NEW}),
        ("2.14.0a0+git1234", {PIPE, NEW}),
    ],
)
def test_each_torch_version_gets_the_variables_that_it_needs(recorder, version, expected):
    assert names(recorder, version) == expected


@pytest.mark.parametrize("name", [OLD, NEW])
def test_a_file_name_of_the_user_is_kept(recorder, name):
    assert not {OLD, NEW} & names(recorder, "2.13.0", [name])


@pytest.mark.parametrize("name", [SIZE, "TORCH_FR_BUFFER_SIZE", DUMP, PIPE])
def test_variables_of_the_user_are_kept(recorder, name):
    assert name not in names(recorder, "2.8.0", [name])


def test_recordings_are_among_the_results_and_pipes_are_not(recorder):
    variables = recorder.environment("2.13.0", {})
    assert variables[NEW] == str(recorder.results / "flight-recorder-gang-3-rank-")
    assert variables[PIPE].startswith(str(recorder.shared))


TORCH = """
import os, sys
number = sys.argv[1]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + number + ".pipe"
os.mkfifo(pipe)
requests = os.open(pipe, os.O_RDWR)
print("ready", flush=True)
assert os.read(requests, 128)
with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + number, "wb") as file:
    file.write(b"recorded")
"""


@pytest.fixture
def start_torch(recorder):
    """Starts a process that imitates torch's flight recorder."""
    processes = []

    def start(rank):
        environment = {**os.environ, **recorder.environment("2.13.0", {})}
        command = [sys.executable, "-c", TORCH, str(rank)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_ranks_write_their_recordings_on_request(recorder, start_torch):
    start_torch(0)
    start_torch(1)
    files = recorder.wait(recorder.request([0, 1]))
    assert [file.name for file in files] == ["flight-recorder-gang-3-rank-0", "flight-recorder-gang-3-rank-1"]
    assert [file.read_text() for file in files] == ["recorded", "recorded"]


def test_a_rank_without_a_pipe_is_not_waited_for(recorder):
    assert recorder.request([0]) == []
    assert recorder.wait([]) == []


def test_a_rank_that_is_dead_is_not_waited_for(recorder, start_torch):
    process = start_torch(0)
    process.kill()
    process.wait()
    assert recorder.request([0]) == []


def test_a_file_that_is_not_a_pipe_is_unchanged(recorder):
    path = recorder.shared / ".flight-recorder-gang-3-rank-0.pipe"
    path.write_text("not a pipe")
    assert recorder.request([0]) == []
    assert path.read_text() == "not a pipe"


def test_waiting_for_a_recording_times_out(recorder):
    assert recorder.wait([recorder.results / "never"], timeout=0.1) == []
