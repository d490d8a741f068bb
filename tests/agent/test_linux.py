import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from allranks.agent import linux


@pytest.fixture
def child():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:  # noqa: S607 - any program that waits
        yield process
        process.stdin.close()


def test_a_child_is_among_the_children_until_it_is_reaped(child):
    assert child.pid in linux.children()
    child.kill()
    assert child.pid in linux.children()
    child.wait()
    assert child.pid not in linux.children()


def run(script):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_a_process_without_children_has_none():
    assert run("from allranks.agent import linux; print(linux.children())") == "frozenset()\n"


def test_a_process_name_may_have_spaces_and_parentheses():
    script = """
        import os, signal
        from pathlib import Path
        from allranks.agent import linux
        ready, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            Path("/proc/self/comm").write_text(") 1 (x")
            os.write(done, b"!")
            signal.pause()
        os.read(ready, 1)
        assert linux.children() == {pid}
        os.kill(pid, signal.SIGKILL)
    """
    run(script)


def test_orphans_of_a_process_that_adopts_them_become_its_children():
    script = """
        import os, signal
        from allranks.agent import linux
        linux.adopt_orphans()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            if grandchild == 0:
                signal.pause()
            os.write(writer, str(grandchild).encode())
            os._exit(0)
        os.waitpid(child, 0)
        grandchild = int(os.read(reader, 100))
        assert linux.children() == {grandchild}
        os.kill(grandchild, signal.SIGKILL)
        os.waitpid(grandchild, 0)
        assert linux.children() == frozenset()
    """
    run(script)


def test_a_process_can_die_with_its_parent():
    script = """
        import os, signal
        from allranks.agent import linux
        linux.adopt_orphans()
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                linux.die_with_parent()
                os.write(done, b"!")
                signal.pause()
            signal.pause()
        os.read(ready, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _, status = os.waitpid(-1, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    """
    run(script)


GATHER = """
import re
from allranks.agent import linux

def huge():
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(r"AnonHugePages: +(\\d+)", file.read())[1])

content = [bytes([number % 256]) * 1024 for number in range(20_000)]
before = huge()
linux.gather_into_huge_pages()
assert content == [bytes([number % 256]) * 1024 for number in range(20_000)]
print(huge() - before)
"""


def has_collapse():
    major, minor = map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups())
    return (major, minor) >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.skipif(not has_collapse(), reason="Linux has MADV_COLLAPSE since 6.1")
def test_gathering_memory_into_huge_pages_keeps_its_content():
    kilobytes = subprocess.run([sys.executable, "-c", GATHER], capture_output=True, text=True, check=True)
    assert int(kilobytes.stdout) >= 2048


def test_a_signal_is_pending_until_it_is_handled():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        assert not linux.is_pending(child.pid, signal.SIGUSR1)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        child.send_signal(signal.SIGUSR1)
        assert linux.is_pending(child.pid, signal.SIGUSR1)
    finally:
        child.kill()
        child.wait()


def test_a_blocked_signal_is_not_pending():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert not linux.is_pending(os.getpid(), signal.SIGUSR1)
        assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def test_no_signal_is_pending_for_an_ended_process():
    assert not linux.is_pending(2**22 + 1, signal.SIGUSR1)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of system calls are unknown")
@pytest.mark.parametrize(
    ("wait", "is_for_a_signal"),
    [
        ("signal.pause()", True),
        ("signal.sigwait([signal.SIGUSR1])", True),
        ("ctypes.CDLL(None).ppoll(None, 0, None, None)", True),
        ("select.select([reading], [], [])", False),
        ("ctypes.CDLL(None).ppoll(ctypes.byref((ctypes.c_int * 2)(reading, 1)), 1, None, None)", False),
        ("time.sleep(60)", False),
        ("while True: pass", False),
    ],
)
def test_only_a_process_that_waits_for_a_signal_may_wait_for_one(wait, is_for_a_signal):
    code = f"import ctypes, os, select, signal, time\nreading, _ = os.pipe()\nprint('ready', flush=True)\n{wait}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            deadline = time.monotonic() + 10
            while linux.may_wait_for_signal(process.pid) != is_for_a_signal and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert linux.may_wait_for_signal(process.pid) is is_for_a_signal
        finally:
            process.kill()
    assert linux.may_wait_for_signal(process.pid)


def test_a_process_can_raise_its_score_for_the_memory_killer():
    script = """
        from pathlib import Path
        from allranks.agent import linux
        before = int(Path("/proc/self/oom_score_adj").read_text())
        for _ in range(5):
            linux.offer_to_memory_killer()
            print(int(Path("/proc/self/oom_score_adj").read_text()) - before, before)
    """
    [(first, before), *_, (last, _)] = [map(int, line.split()) for line in run(script).splitlines()]
    assert first == min(333, 1000 - before)
    assert last == 1000 - before


def test_variables_of_waits_for_a_process_in_execve(tmp_path):
    # as in /proc during execve(2), for microseconds or until a disk has been read
    process = tmp_path / "7"
    process.mkdir()
    (process / "exe").symlink_to(sys.executable)
    for name in ("environ", "cmdline"):
        (process / name).touch()

    def begin():
        (process / "environ").write_bytes(b"A=1\0B=2")
        (process / "cmdline").write_bytes(b"program")

    threading.Timer(0.05, begin).start()
    assert linux.variables_of(7, proc=tmp_path) == ["A=1", "B=2"]
