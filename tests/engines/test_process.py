import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.engines import agents
from allranks.engines import process as engine_process
from allranks.engines.base import Passthrough, Resources
from allranks.engines.process import ProcessEngine, command, environment
from allranks.errors import EngineError
from allranks.matrix.model import Matrix
from allranks.ownership import HOST_VARIABLE, RUN_VARIABLE, host_id, lock_folder, own_run

SCRATCH = Path("/scratch")
PACKAGE = Path("/package")

SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def scratch_root(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def engine(tmp_path, monkeypatch, scratch_root):  # noqa: ARG001 - a folder of its own
    """An engine with a fake agent program."""

    def run(program: str) -> ProcessEngine:
        script = tmp_path / "agent.py"
        script.write_text(program)
        monkeypatch.setattr(engine_process, "command", lambda python, *_: [python, str(script)])
        return ProcessEngine(tmp_path)

    return run


def scratch_of(run_id: str) -> Path:
    return engine_process._make_scratch(SimpleNamespace(run_id=run_id, job_id="a job"))


@pytest.fixture
def spec(make_spec, tmp_path):
    return make_spec(python=sys.executable, code=tmp_path)


def ignore(_node, _said):
    pass


def ends(pid: int) -> bool:
    """Wait for the end of a process that is not a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


def test_command_starts_the_agent_with_the_folders_of_its_job():
    assert command("/py", Path("/package"), Path("/code"), SCRATCH, SCRATCH / "shared") == [
        "/py", "-I", "-S", "/package/allranks/agent/__main__.py",
        "--config", "/scratch/config.json", "--code", "/code",
        "--results", "/scratch/results", "--shared", "/scratch/shared",
    ]  # fmt: skip


def test_environment_is_the_hosts_with_the_jobs_on_top(make_spec):
    made = environment(make_spec(environment={"A": "job", "B": "job"}), SCRATCH, PACKAGE, {"A": "host", "C": "host"})
    assert (made["A"], made["B"], made["C"]) == ("job", "job", "host")


def test_environment_has_nothing_of_a_rank_that_allranks_itself_may_run_in(make_spec):
    host = {"RANK": "3", "MASTER_ADDR": "a", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANKS": "mine"}
    made = environment(make_spec(environment={"MASTER_PORT": "1"}), SCRATCH, PACKAGE, host)
    assert {"RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"}.isdisjoint(made)
    assert (made["RANKS"], made["MASTER_PORT"]) == ("mine", "1")


def test_environment_has_where_a_users_etcd_is(make_spec):
    host = {"TORCHELASTIC_ETCD_BINARY_PATH": "/opt/etcd"}
    assert environment(make_spec(), SCRATCH, PACKAGE, host).items() >= host.items()


def test_environment_finds_the_agent_before_the_project_and_the_users_own_path(make_spec):
    made = environment(make_spec(python_path=(Path("/project"),)), SCRATCH, PACKAGE, {"PYTHONPATH": "/host"})
    assert made["PYTHONPATH"] == "/package:/project:/host"


def test_environment_has_no_empty_entry_on_the_path(make_spec):
    """An empty entry would be the current folder."""
    assert environment(make_spec(), SCRATCH, PACKAGE, {})["PYTHONPATH"] == "/package"


def test_environment_shows_exactly_the_leased_gpus(make_spec):
    made = environment(make_spec(gpus=("GPU-a", "GPU-b")), SCRATCH, PACKAGE, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_rocm_shows_a_job_its_own_gpus_by_their_numbers(make_spec):
    for gpus, numbers, shown in ((("a", "b"), (2, 0), "2,0"), ((), (), "-1")):
        spec = make_spec(gpus=gpus, passthrough=Passthrough(driver="rocm", numbers=numbers))
        made = environment(spec, SCRATCH, PACKAGE, {"HIP_VISIBLE_DEVICES": "0,1,2,3"})
        assert (made["HIP_VISIBLE_DEVICES"], made["CUDA_VISIBLE_DEVICES"]) == (shown, shown)


def test_environment_shows_no_gpu_to_a_job_without_a_lease(make_spec):
    assert environment(make_spec(), SCRATCH, PACKAGE, {"CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == ""


def test_environment_keeps_files_of_the_job_in_its_scratch_folder_and_names_its_run(make_spec):
    made = environment(make_spec(run_id="r", environment={RUN_VARIABLE: "x", "TMPDIR": "x"}), SCRATCH, PACKAGE, {})
    assert made["TMPDIR"] == "/scratch/tmp"
    assert (made[RUN_VARIABLE], made[HOST_VARIABLE]) == ("r", host_id())


def test_ranks_use_loopback_unless_the_matrix_file_changes_it(make_spec):
    assert environment(make_spec(), SCRATCH, PACKAGE, {})["GLOO_SOCKET_IFNAME"] == "lo"
    spec = make_spec(environment={"GLOO_SOCKET_IFNAME": "eth0"})
    assert environment(spec, SCRATCH, PACKAGE, {})["GLOO_SOCKET_IFNAME"] == "eth0"


def test_a_folder_that_cannot_be_made_whole_is_not_left(scratch_root, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EngineError, match="could not be created") as error:
        scratch_of("r1")
    assert "No space left" in error.value.why
    assert not list(scratch_root.iterdir())


def test_a_job_without_an_interpreter_is_an_error(engine, make_spec, scratch_root):
    with pytest.raises(EngineError, match="no interpreter"), engine("").start(make_spec()):
        pass
    assert list(scratch_root.iterdir()) == []


def test_an_interpreter_that_is_not_there_is_an_error_that_leaves_nothing(engine, make_spec, scratch_root, tmp_path):
    spec = make_spec(python=str(tmp_path / "no-python"))
    with pytest.raises(EngineError, match="could not be started") as error, engine("").start(spec):
        pass
    assert "no-python" in error.value.why
    assert list(scratch_root.iterdir()) == []


def test_no_room_for_a_scratch_folder_is_an_error(engine, spec, scratch_root):
    scratch_root.rmdir()
    with pytest.raises(EngineError, match="folder") as error, engine("").start(spec):
        pass
    assert "TMPDIR" in error.value.remedy


def test_exit_status_and_output_of_a_dead_agent_are_reported(engine, spec):
    with engine("import sys; sys.exit('no torch here')").start(spec) as job:
        job.go()
        ending = job.wait(ignore)
    assert (ending.status, ending.timed_out) == (1, False)
    assert ending.output == "no torch here"


def test_a_killed_agent_ends_with_the_signals_number(engine, spec):
    with engine("import os; os.kill(os.getpid(), 9)").start(spec) as job:
        assert job.wait(ignore).status == -signal.SIGKILL


def test_going_after_the_end_is_no_error(engine, spec):
    with engine("").start(spec) as job:
        job.wait(ignore)
        job.stop()
        job.stop()


def test_a_go_that_is_not_read_is_no_error(engine, spec):
    with engine("import os; os.close(0); print('closed', flush=True); os.read(3, 1)").start(spec) as job:
        while not job._leader.stream.output:
            list(job._leader.stream.feed(os.read(job._leader.output, 100)))
        job.go()


def test_an_agent_that_ignores_the_end_of_its_input_is_killed(engine, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.2)
    with engine("import signal; signal.pause()").start(spec) as job:
        job.stop()
        assert job._leader.process.returncode == -signal.SIGKILL


def test_an_agent_with_much_left_to_say_is_read_until_its_end(engine, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 30)
    program = "import sys; sys.stdin.read(); sys.stdout.write('x\\n' * 500_000); sys.exit(7)"
    with engine(program).start(spec) as job:
        job.stop()
        assert job._leader.process.returncode == 7


def test_what_outlives_an_agent_in_its_group_is_killed(engine, spec, tmp_path):
    program = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
"""
    with engine(program).start(spec) as job:
        job.wait(ignore)
    assert ends(int((tmp_path / "pid").read_text()))


def test_the_time_limit_ends_an_agent_that_does_nothing(engine, make_spec, monkeypatch, tmp_path):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.2)
    resources = Resources(memory_bytes=1, shm_bytes=1, disk_bytes=1, pids=1, seconds=0.2)
    limited = make_spec(python=sys.executable, code=tmp_path, resources=resources)
    with engine("import signal; signal.pause()").start(limited) as job:
        job.go()
        ending = job.wait(ignore)
    assert ending.timed_out
    assert ending.status == -signal.SIGKILL


def test_the_scratch_folder_goes_even_when_the_body_fails(engine, spec, scratch_root):
    jobs = []

    def fail() -> None:
        with engine(SLEEPER).start(spec) as job:
            jobs.append(job)
            assert len(list(scratch_root.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(scratch_root.iterdir()) == []
    assert jobs[0]._leader.process.returncode == 0


def test_results_that_cannot_be_copied_are_an_error(engine, spec, tmp_path):
    with engine("").start(spec) as job:
        job.wait(ignore)
        (tmp_path / "file").touch()
        with pytest.raises(EngineError, match="could not be copied"):
            job.collect(tmp_path / "file")


def test_a_held_descriptor_is_inherited(engine, spec, tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        program = f"import os; os.write({lock.fileno()}, b'held')"
        with engine(program).start(spec, [lock.fileno()]) as job:
            assert job.wait(ignore).status == 0
    assert (tmp_path / "lock").read_text() == "held"


@pytest.fixture
def own_host(monkeypatch, run_id):
    """A separate host id, so that other runs on this machine do not clean up the test's processes."""
    name = f"test.{run_id}.host"
    monkeypatch.setattr("allranks.ownership.host_id", lambda: name)
    monkeypatch.setattr(engine_process, "host_id", lambda: name)


@pytest.fixture
def sleeper():
    """Start a process with the environment variable of a run."""
    with ExitStack() as stack:

        def start(run_id: str, host: str | None = None) -> subprocess.Popen[bytes]:
            of_host = {} if host == "" else {HOST_VARIABLE: host or engine_process.host_id()}
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SLEEPER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, **of_host, RUN_VARIABLE: run_id},
                )
            )
            stack.callback(process.kill)
            assert process.stdout.readline() == b"up\n"
            return process

        yield start


@pytest.fixture
def reap(engine, monkeypatch):
    """Clean up, but only one run: this host may have others."""

    def reap_one(run_id: str) -> list[str]:
        found = engine_process._processes_of_runs
        monkeypatch.setattr(
            engine_process,
            "_processes_of_runs",
            lambda: [item for item in found() if item[1].run_id == run_id],
        )
        return engine("").clean_up().dead

    return reap_one


@pytest.mark.usefixtures("own_host")
def test_reaping_kills_processes_of_a_dead_owner(reap, sleeper, run_id):
    left = sleeper(run_id)
    assert reap(run_id) == [f"process {left.pid}"]
    assert left.wait() == -signal.SIGKILL


@pytest.mark.usefixtures("own_host")
def test_reaping_spares_processes_of_a_living_owner(reap, sleeper, run_id):
    process = sleeper(run_id)
    with own_run(run_id):
        assert reap(run_id) == []
    assert process.poll() is None


def test_reaping_spares_processes_of_containers(engine, reap, sleeper, run_id, monkeypatch):
    """Their owner's locks are in a container, too, so it looks dead from here."""
    process = sleeper(run_id, host="")
    own = engine_process.process_namespace(Path("/proc/self"))
    monkeypatch.setattr(
        engine_process,
        "process_namespace",
        lambda folder: Path("pid:[1]") if folder.name == str(process.pid) else own,
    )
    assert reap(run_id) == []
    assert process.poll() is None
    assert not [name for name in engine("").clean_up(is_dry_run=True).unknown if name == f"process {process.pid}"]


@pytest.mark.parametrize("host", ["", "another"])
def test_a_process_of_an_unknown_owner_is_kept_and_reported(engine, reap, sleeper, run_id, host):
    process = sleeper(run_id, host)
    assert reap(run_id) == []
    assert process.poll() is None
    assert f"process {process.pid}" in engine("").clean_up(is_dry_run=True).unknown
    assert f"process {process.pid}" not in engine("").clean_up(is_dry_run=True).dead


CLEAN = """
import sys
from pathlib import Path
from allranks.engines import process
found = process._processes_of_runs
process._processes_of_runs = lambda: [item for item in found() if item[1].run_id == sys.argv[1]]
engine = process.ProcessEngine(Path())
print(engine.clean_up(is_dry_run=True).dead, engine.clean_up().dead, engine.clean_up(is_dry_run=True).unknown)
"""


@pytest.fixture
def elsewhere(scratch_root, run_id):
    """Clean up the processes of one run in new namespaces; return what was removed and what was kept."""

    def clean(*options: str, first: str = "true") -> str:
        inside = [*("unshare", *options), *("sh", "-c", f'{first} && exec "$@"', "sh")]
        command = [*inside, sys.executable, "-c", CLEAN, run_id]
        environ = {**os.environ, "TMPDIR": str(scratch_root)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    return clean


@pytest.mark.root
# Each run that starts beside a dead one reaps, too.
@pytest.mark.parametrize("owner", [own_run, pytest.param(nullcontext, marks=pytest.mark.alone)], ids=["alive", "dead"])
@pytest.mark.parametrize(
    "options",
    ["--mount", "--mount --pid --fork --mount-proc", "--pid --fork --mount-proc", "--pid --fork"],
)
def test_nothing_of_a_run_is_touched_from_another_name_space(elsewhere, sleeper, run_id, options, owner):
    hide = f"mount -t tmpfs none {lock_folder().parent}" if "--mount " in f"{options} " else "true"
    with owner(run_id):
        process, folder = sleeper(run_id), scratch_of(run_id)
        output = elsewhere(*options.split(), first=hide)
    assert process.poll() is None
    assert folder.is_dir()
    # By its number there, no process of another pid namespace can be told.
    named = [] if "--pid" in options else [f"process {process.pid}"]
    assert output == f"[] [] {[*named, f'folder {folder}']}\n"


@pytest.mark.alone
@pytest.mark.root
def test_leftovers_are_removed_from_a_namespace_with_the_same_ids(elsewhere, sleeper, run_id):
    process = sleeper(run_id)
    assert f"['process {process.pid}'] ['process {process.pid}'] []" in elsewhere("--uts")
    assert process.wait() == -signal.SIGKILL


@pytest.mark.usefixtures("own_host")
def test_reaping_removes_scratch_folders_of_dead_owners_alone(engine, reap, scratch_root, run_id):
    dead, alive = (scratch_of(name) for name in (run_id, f"{run_id}-alive"))
    (scratch_root / "somebody-elses").mkdir()
    nobody_knows = [scratch_root / f"allranks-job-{run_id}.{name}" for name in ("x1", "x2")]
    for folder in nobody_knows:
        folder.mkdir()
    (nobody_knows[1] / "owner").write_text("another")
    with own_run(f"{run_id}-alive"):
        assert reap(run_id) == [f"folder {dead}"]
        assert sorted(engine("").clean_up(is_dry_run=True).unknown) == [f"folder {folder}" for folder in nobody_knows]
    assert {*scratch_root.iterdir()} == {alive, scratch_root / "somebody-elses", *nobody_knows}


@pytest.mark.usefixtures("scratch_root", "own_host")
def test_remains_are_named_and_stay(engine, sleeper, run_id):
    process = sleeper(run_id)
    folder = scratch_of(run_id)
    with own_run(run_id):
        assert not {f"process {process.pid}", f"folder {folder}"} & set(engine("").clean_up(is_dry_run=True).dead)
    assert {f"process {process.pid}", f"folder {folder}"} <= set(engine("").clean_up(is_dry_run=True).dead)
    assert process.poll() is None
    assert folder.exists()


def test_a_folder_that_a_test_has_closed_to_everyone_is_removed(tmp_path):
    """Only root may list it."""
    closed = tmp_path / "job" / "results" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    closed.parent.chmod(0)
    engine_process.remove_tree(tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_reaping_survives_a_folder_that_goes_at_that_moment(reap, scratch_root, run_id, monkeypatch):
    gone = scratch_root / f"allranks-job-{run_id}.x1"
    monkeypatch.setattr(engine_process.Path, "glob", lambda *_: iter([gone]))
    assert reap(run_id) == []


def test_the_package_is_there_before_jobs_start_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_process, "package_path", lambda cache: made.append(cache) or tmp_path)
    made = []
    prepared = ProcessEngine()
    prepared.prepare(Matrix(path=tmp_path / "matrix.toml", axes={}), pytest.fail, None)
    assert len(made) == 1
    assert (prepared._package_path, prepared._package_path) == (tmp_path, tmp_path)
    assert len(made) == 1
