"""``scripts/gpu-acceptance`` as a person runs it, on this host without GPUs."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from long_lists import quick

from allranks.ownership import lock_folder
from allranks.testing.shared_files import wait_until
from gpu_acceptance.__main__ import _groups
from gpu_acceptance.parts import PARTS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu-acceptance"
FILES = {"evidence.tar.gz", "junit.xml", "log.txt", "report.html", "summary.md"}


def command(out, *arguments, script=SCRIPT):
    return [str(script), "--python", sys.executable, "--out", str(out), *arguments]


def run(*arguments, **environment):
    done = subprocess.run(
        command(*arguments), env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def lines_of(out):
    return [line for line in (out / "summary.md").read_text().splitlines() if line.startswith("- ")]


def test_without_a_gpu_each_part_has_its_reason_and_the_exit_code_is_5(tmp_path):
    (tmp_path / "tmp").mkdir()
    began = time.monotonic()
    leaking = {"GPU_ACCEPTANCE_PRETENDS": "GPU-a", "ALLRANKS_GPUS": "GPU-a", "ALLRANKS_ENGINE": "docker"}
    code, output, errors = run(tmp_path / "out", CUDA_VISIBLE_DEVICES="", TMPDIR=str(tmp_path / "tmp"), **leaking)
    assert "PRETENDED" not in output
    assert (code, errors) == (5, "")
    assert time.monotonic() - began < 60
    lines = lines_of(tmp_path / "out")
    assert lines[0].startswith("- proved: kernel ")
    assert [line.split()[4] for line in lines[1:]] == [part.name for part in PARTS[1:]]
    assert all("no GPU: torch" in line for line in lines[1:])
    assert "1 proved, 28 not possible here, 0 wrong" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    quick(
        1,
        [
            (["--minutes", "0"], "--minutes 0 is not between 0 and 1440"),
            (["--minutes", "nan"], "--minutes nan is not between"),
            (["--minutes", "soon"], "invalid float value: 'soon'"),
            (["--only", "everything"], "invalid choice: 'everything'"),
            (["--python", "/nowhere/python"], "/nowhere/python cannot be run"),
            (["--out", "/proc/nowhere"], "cannot be made"),
            (["--nonsense"], "unrecognized arguments: --nonsense"),
            (["--wheels", "/nowhere"], "--wheels /nowhere holds no wheel"),
        ],
    ),
)
def test_bad_arguments_are_refused_in_one_sentence(tmp_path, arguments, why):
    python = [] if "--python" in arguments else ["--python", sys.executable]
    done = subprocess.run([SCRIPT, *python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu-acceptance: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "file").touch()
    code, _, errors = run(tmp_path)
    assert code == 2
    assert "is not empty" in errors


@pytest.mark.thorough
def test_an_interrupt_keeps_what_was_found_and_leaves_no_process(tmp_path):
    only = [f"--only={name}" for name in ("kernel", "fault-job-limit-in-a-kernel", "check-of-a-sick-gpu")]
    (tmp_path / "tmp").mkdir()
    # Shells have their background jobs ignore SIGINT.
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    process = subprocess.Popen(
        [*ignoring, *command(tmp_path / "out", "--pretend", *only)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if "proved: kernel" in line:
            break
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    lines = lines_of(tmp_path / "out")
    assert lines[0].startswith("- PRETENDED, proved: kernel")
    assert "interrupted" in lines[1]
    assert len(lines) == 2
    summary = (tmp_path / "out/summary.md").read_text()
    assert summary.startswith("# PRETENDED GPU acceptance: 1 proved, 1 not possible here, 0 wrong, 1 not finished.")
    assert "| check-of-a-sick-gpu | not finished | | |" in summary
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not processes_with(str(tmp_path / "tmp"))


def processes_with(text):
    """Processes whose environment has a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "environ").read_bytes() and folder.name != str(os.getpid()):
                found.append((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.alone
@pytest.mark.thorough
def test_all_parts_are_proved_on_stand_ins_and_say_that_they_pretend(tmp_path):
    locks = set(lock_folder().iterdir())
    code, output, errors = run(tmp_path / "out", "--pretend")
    lines = lines_of(tmp_path / "out")
    assert [line.split()[3] for line in lines] == [part.name for part in PARTS]
    assert all(line.startswith("- PRETENDED, proved: ") for line in lines), output
    assert code == 0, output + errors
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert all(path.stat().st_size < 16 << 20 for path in (tmp_path / "out").iterdir())
    assert set(lock_folder().iterdir()) <= locks


@pytest.fixture
def checkout(tmp_path):
    """A checkout of its own, whose files a test may change."""
    for folder in ("src/allranks", "tests/gpu_acceptance", "tests/faults", "tests/runner", "suites", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "checkout"


SABOTAGE = {
    # No rank comes to the barrier, and leaves the note of having used the GPU.
    "nccl-one-gpu": ("suites/basics/test_basics.py", '    notes.leave("basics"', '    0 and notes.leave("basics"'),
    # A test of the suite is gone.
    "gloo-cuda-tensors": ("suites/basics/test_basics.py", "def test_broadcast_", "def was_broadcast_"),
    # CUDA is initialised before the ranks are forked.
    "forks": ("suites/forks/test_forks.py", "\n\n\n@pytest", "\nGPU.place(0)\n\n\n@pytest"),
    # The planted fault is none.
    "fault-sigkill-in-a-kernel": ("suites/faults/sigkill_in_a_kernel.py", "os.kill(", "print("),
    # The lease is a GPU that the job does not see.
    "leases-obey": ("suites/holds/test_holds.py", 'facts = {"gpus": [', 'facts = {"gpus": ["GPU-other"] or ['),
    # More ranks take no more memory.
    "memory-of-ranks": ("pretence/stand_in.py", 'int(os.environ.get("WORLD_SIZE", "1"))', "1"),
    # The check takes a GPU that computes wrongly for a healthy one.
    "check-of-a-sick-gpu": ("parts/host.py", "torch.matmul(one, other) + 1", "torch.matmul(one, other)"),
    # A part forgets its checks.
    "doctor": ("parts/host.py", "    bench.check(", "    str("),
}


@pytest.mark.thorough
@pytest.mark.alone
def test_a_check_that_is_broken_is_not_proved(tmp_path, checkout):
    """All at once: each breaks the part that is named, and no other of these."""
    for path, text, other in SABOTAGE.values():
        file = checkout / "tests/gpu_acceptance" / path
        assert text in file.read_text()
        file.write_text(file.read_text().replace(text, other))
    only = [f"--only={name}" for name in (*SABOTAGE, "containers")]
    script = checkout / "scripts/gpu-acceptance"
    done = subprocess.run(
        command(tmp_path / "out", "--pretend", *only, script=script), capture_output=True, text=True, check=False
    )
    outcomes = {line.split()[3]: line.split()[2] for line in lines_of(tmp_path / "out")}
    assert outcomes == {**dict.fromkeys(SABOTAGE, "wrong:"), "containers": "proved:"}, done.stdout
    assert done.returncode == 1


@pytest.mark.thorough
def test_a_run_that_is_killed_keeps_each_part_that_has_ended(tmp_path):
    only = ["--only=kernel", "--only=fault-job-limit-in-a-kernel"]
    process = subprocess.Popen(command(tmp_path / "out", "--pretend", *only), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "proved: kernel" in line:
            break
    assert wait_until((tmp_path / "out/summary.md").exists, timeout=10)
    process.kill()
    process.communicate()
    summary = (tmp_path / "out/summary.md").read_text()
    assert "| kernel | PRETENDED, proved | " in summary
    assert "| fault-job-limit-in-a-kernel | not finished | | |" in summary


@pytest.fixture
def wheels(tmp_path):
    """A folder with one wheel; its module is called like one that the machine lacks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "brought-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought/__init__.py", "VALUE = 7\n")
    return folder


@pytest.mark.thorough
def test_wheels_are_there_for_the_script_and_the_ranks(tmp_path, wheels, checkout):
    for path in ("parts/containers.py", "suites/inside/test_inside.py"):
        file = checkout / "tests/gpu_acceptance" / path
        file.write_text(f"{file.read_text()}\n\nimport brought\n\nassert brought.VALUE == 7\n")
    script = checkout / "scripts/gpu-acceptance"
    for options, code in ((["--wheels", str(wheels)], 0), ([], 1)):
        out = tmp_path / f"out-{code}"
        started = command(out, "--pretend", "--only=containers", *options, script=script)
        done = subprocess.run(started, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout


@pytest.mark.thorough
def test_wheels_of_the_checkout_are_found_on_the_users_python_path(wheels, checkout):
    wheel = shutil.move(wheels / "brought-1-py3-none-any.whl", checkout)
    file = checkout / "tests/gpu_acceptance/machine.py"
    file.write_text(file.read_text().replace("MODULES = (", 'MODULES = ("brought", "missing", '))
    paths = [checkout / "src", checkout / "tests", checkout / "tests/faults", wheel]
    code = (
        "import os; from pathlib import Path; from gpu_acceptance import __main__ as script; "
        "environment = script._lay_out(Path('work'), (), None); print(environment['PYTHONPATH']); "
        "print(*script._look(environment, pretended=False).lacking)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    work = wheels / "work"
    work.mkdir()
    started = [sys.executable, "-P", "-c", code]
    done = subprocess.run(started, cwd=wheels, env=environment, capture_output=True, text=True, check=True)
    path, lacking = done.stdout.splitlines()
    assert str(wheel) in path.split(os.pathsep)
    assert str(checkout / "src") not in path.split(os.pathsep)
    assert "brought" not in lacking.split()
    assert "missing" in lacking.split()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    quick(
        1,
        [
            ("numpy-2-cp312-cp312-manylinux_2_28_x86_64.whl", b"", "is not a pure-Python wheel"),
            ("broken-1-py3-none-any.whl", b"PK nonsense", "cannot be read: File is not a zip file"),
        ],
    ),
)
def test_a_wheel_that_cannot_be_used_is_refused(tmp_path, wheels, name, content, why):
    (wheels / name).write_bytes(content)
    code, output, errors = run(tmp_path / "out", "--wheels", str(wheels))
    assert (code, output) == (2, "")
    assert errors.startswith(f"gpu-acceptance: --wheels {wheels} holds {name}, which {why}")
    assert errors.count("\n") == 1


def test_parts_that_need_the_gpus_to_themselves_run_alone():
    groups = [[part.name for part in group] for group in _groups(PARTS)]
    assert [name for group in groups for name in group] == [part.name for part in PARTS]
    alone = {part.name for part in PARTS if part.is_alone}
    assert {name for name in alone if [name] in groups} == alone
    assert "fault-out-of-memory" in alone


@pytest.mark.thorough
def test_a_host_without_docker_rich_and_nvml_is_proved_all_the_same(tmp_path, checkout):
    for name in ("docker", "rich", "pynvml"):
        stub = checkout / "tests/gpu_acceptance/pretence/modules" / f"{name}.py"
        stub.write_text(f"raise ModuleNotFoundError(name={name!r})")
    only = ["--only=nccl-one-gpu", "--only=nvml-and-torch"]
    started = command(tmp_path / "out", "--pretend", *only, script=checkout / "scripts/gpu-acceptance")
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    cells, nvml = lines_of(tmp_path / "out")
    assert "not possible here: nvml-and-torch" in nvml
    assert "nvidia-ml-py is not installed" in nvml
    assert "proved: nccl-one-gpu" in cells
    assert done.returncode == 1, done.stdout  # --pretend is green only if all is proved
