"""What the kernel does for one test of torch's ``distributed_test`` under allranks.

    python benchmarks/system_time.py [--tests 20]

Runs a sample of the tests of ``benchmarks/torch_suites.py`` and one of them alone, and prints the difference per test,
so that the start of a run does not count. If strace is installed, each run is repeated under it to count system calls;
only the first runs are timed.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "torch_suites"))  # the helpers of that folder

from allranks_run import one_job, run
from sampling import fixed_sample
from suite_files import Selection

CALLS = {
    "forks": ("clone", "fork", "vfork"),
    "threads": ("clone3",),  # since glibc 2.34
    "polls": ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"),
    "reads and writes": ("read", "write", "sendto", "sendmsg", "recvfrom", "recvmsg", "readv", "writev"),
    "files opened": ("open", "openat"),
    "changes of memory mappings": ("mmap", "munmap", "mremap", "madvise", "mprotect", "brk"),
    "signals sent": ("kill", "tkill", "tgkill", "pidfd_send_signal"),
}


def select(tests: int) -> Selection:
    """The first tests of the sample."""
    [(suite, names)] = fixed_sample("c10d").items()
    return {suite: names[:tests]}


def run_once(tests: int) -> None:
    """Run some of the tests."""
    with tempfile.TemporaryDirectory(prefix="system-time-") as folder:
        ran = run([one_job("torch-list-c10d", select(tests))], Path(folder) / "run")
        if len([outcome for suite in ran.suites.values() for outcome in suite.values()]) != tests:
            sys.exit(ran.output)


def usage(command: Sequence[str]) -> Mapping[str, float]:
    """The resources that a command and its children use, which all are waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    fields = {
        "user time (ms)": ("ru_utime", 1000),
        "system time (ms)": ("ru_stime", 1000),
        "page faults": ("ru_minflt", 1),
        "waits (voluntary context switches)": ("ru_nvcsw", 1),
        "preemptions (involuntary ones)": ("ru_nivcsw", 1),
    }
    return {name: factor * (getattr(after, key) - getattr(before, key)) for name, (key, factor) in fields.items()}


def calls(strace: str, command: Sequence[str]) -> Mapping[str, float]:
    """How often a command and its children make each kind of system call."""
    with tempfile.NamedTemporaryFile(suffix=".strace") as file:
        options = ("-f", "-c", "-U", "count,name", "-o", file.name)
        subprocess.run([strace, *options, *command], check=True)
        lines = [line.split() for line in Path(file.name).read_text(encoding="utf-8").splitlines()]
    counts = {line[1]: int(line[0]) for line in lines if len(line) == 2 and line[0].isdecimal() and line[1] != "total"}
    found = {name: float(sum(counts.get(call, 0) for call in kinds)) for name, kinds in CALLS.items()}
    return {**found, "system calls": float(sum(counts.values()))}


def main() -> None:
    """Print what each test costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--once", action="store_true", help="only run the tests")
    options = parser.parse_args()
    if options.once:
        run_once(options.tests)
        return
    strace = shutil.which("strace")
    measures: list[Callable[[Sequence[str]], Mapping[str, float]]] = [usage]
    if strace:
        measures.append(partial(calls, strace))
    for measure in measures:
        many, one = (
            measure([sys.executable, __file__, "--once", "--tests", str(tests)]) for tests in (options.tests, 1)
        )
        for name, value in many.items():
            print(f"{name:38} {(value - one.get(name, 0.0)) / (options.tests - 1):10.1f}", flush=True)


if __name__ == "__main__":
    main()
