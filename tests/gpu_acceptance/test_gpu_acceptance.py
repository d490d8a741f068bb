"""``scripts/gpu-acceptance`` as a person runs it, on this host without GPUs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.engine.ownership import lock_folder
from gpu_acceptance.parts import PARTS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu-acceptance"
FILES = {"evidence.tar.gz", "junit.xml", "log.txt", "report.html", "summary.md"}

UNIMPORTABLE = """
import sys

for name in ("docker", "rich", "pynvml"):
    sys.modules[name] = None
"""


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
    code, said, errors = run(tmp_path / "out", CUDA_VISIBLE_DEVICES="", TMPDIR=str(tmp_path / "tmp"), **leaking)
    assert "PRETENDED" not in said
    assert (code, errors) == (5, "")
    assert time.monotonic() - began < 60
    lines = lines_of(tmp_path / "out")
    assert [line.split()[4] for line in lines] == [part.name for part in PARTS]
    assert all("no GPU: torch" in line for line in lines)
    assert "0 proved, 28 not possible here, 0 wrong" in said
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"evidence.tar.gz"}
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--minutes", "0"], "--minutes 0 is not between 0 and 1440"),
        (["--minutes", "nan"], "--minutes nan is not between"),
        (["--minutes", "soon"], "invalid float value: 'soon'"),
        (["--only", "everything"], "invalid choice: 'everything'"),
        (["--python", "/nowhere/python"], "/nowhere/python cannot be run"),
        (["--out", "/proc/nowhere"], "cannot be made"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
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


def test_an_interrupt_keeps_what_was_found_and_leaves_no_process(tmp_path):
    only = [f"--only={name}" for name in ("nvml-and-torch", "fault-job-limit-in-a-kernel", "leases-wait")]
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
        if "nvml-and-torch" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    lines = lines_of(tmp_path / "out")
    assert lines[0].startswith("- PRETENDED, proved: nvml-and-torch")
    assert "interrupted" in lines[1]
    assert len(lines) == 3
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
    locks = set(lock_folder().glob("gpu-*"))
    code, said, errors = run(tmp_path / "out", "--pretend")
    lines = lines_of(tmp_path / "out")
    assert [line.split()[3] for line in lines] == [part.name for part in PARTS]
    assert all(line.startswith("- PRETENDED, proved: ") for line in lines), said
    assert code == 0, said + errors
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert all(path.stat().st_size < 16 << 20 for path in (tmp_path / "out").iterdir())
    assert set(lock_folder().glob("gpu-*")) <= locks


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


@pytest.mark.alone
def test_a_check_that_is_broken_is_not_proved(tmp_path):
    """All at once: each breaks the part that is named, and no other of these."""
    for folder in ("src/allranks", "tests/gpu_acceptance", "tests/faults", "tests/schedule", "suites", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text, other in SABOTAGE.values():
        file = tmp_path / "checkout/tests/gpu_acceptance" / path
        assert text in file.read_text()
        file.write_text(file.read_text().replace(text, other))
    only = [f"--only={name}" for name in (*SABOTAGE, "containers")]
    script = tmp_path / "checkout/scripts/gpu-acceptance"
    done = subprocess.run(
        command(tmp_path / "out", "--pretend", *only, script=script), capture_output=True, text=True, check=False
    )
    outcomes = {line.split()[3]: line.split()[2] for line in lines_of(tmp_path / "out")}
    assert outcomes == {**dict.fromkeys(SABOTAGE, "wrong:"), "containers": "proved:"}, done.stdout
    assert done.returncode == 1


def test_a_host_without_docker_rich_and_nvml_is_proved_all_the_same(tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(UNIMPORTABLE)
    only = ["--only=nccl-one-gpu", "--only=nvml-and-torch"]
    code, said, _ = run(tmp_path / "out", "--pretend", *only, PYTHONPATH=str(tmp_path / "path"))
    nvml, cells = lines_of(tmp_path / "out")
    assert "not possible here: nvml-and-torch" in nvml
    assert "nvidia-ml-py is not installed" in nvml
    assert "proved: nccl-one-gpu" in cells
    assert code == 1, said  # --pretend is green only if all is proved
