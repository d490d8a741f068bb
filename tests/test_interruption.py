import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from long_lists import quick

from allranks.interruption import RunInterrupted, block_signals, defer_signal, ignore_signals, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_interrupts(number):
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request):
    return request.param


@pytest.fixture
def ignored(number):
    """A signal that was ignored when the program started."""
    before = signal.signal(number, signal.SIG_IGN)
    yield number
    signal.signal(number, before)


def test_an_ignored_signal_stays_ignored(ignored):
    with interruptible(), block_signals():
        signal.raise_signal(ignored)
    with interruptible(), ignore_signals(), interruptible():
        signal.raise_signal(ignored)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_the_other_signals_interrupt_while_one_is_ignored(ignored):
    for other in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - {ignored}:
        with pytest.raises(RunInterrupted), interruptible():
            signal.raise_signal(other)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_a_dropped_interrupt_comes_again_also_on_a_slow_machine(monkeypatch):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    start = threading.Thread.start

    def start_slowly(thread):
        start(thread)
        time.sleep(0.1)

    def run():
        with interruptible():
            Finalized()
            threading.Event().wait(9)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    with pytest.raises(RunInterrupted):
        run()


def test_a_dropped_interrupt_comes_again_while_another_signal_is_ignored(ignored):
    class Finalized:
        def __del__(self):
            signal.raise_signal(next(iter({signal.SIGINT, signal.SIGTERM} - {ignored})))

    def run():
        with interruptible():
            Finalized()
            threading.Event().wait(9)

    with pytest.raises(RunInterrupted):
        run()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_the_command_goes_on_under_a_signal_that_its_parent_ignores(tmp_path, name):
    (tmp_path / "argparse.py").write_text(
        f"import os, signal, sys\nsignal.raise_signal(signal.{name})\nprint('went on', flush=True)\nos._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [
        "/bin/sh",
        "-c",
        f"trap '' {name.removeprefix('SIG')}; exec {shlex.quote(sys.executable)} -m allranks plan",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_further_signals_change_nothing():
    def clean_up_under_fire():
        with interruptible():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.raise_signal(number)
                done.append(True)

    done = []
    with pytest.raises(KeyboardInterrupt):
        clean_up_under_fire()
    assert done == [True]


def test_an_interrupt_that_python_drops_in_a_finalizer_comes_again():
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def run():
        with interruptible():
            Finalized()
            for _ in range(1000):
                time.sleep(0.01)

    began = time.monotonic()
    with pytest.raises(RunInterrupted):
        run()
    assert time.monotonic() - began < 9


def test_what_else_is_dropped_goes_to_the_hook_of_before(monkeypatch):
    class Finalized:
        def __del__(self):
            raise ZeroDivisionError

    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    hook = sys.unraisablehook
    with interruptible():
        Finalized()
    assert [error.exc_type for error in dropped] == [ZeroDivisionError]
    assert sys.unraisablehook is hook


def test_handlers_are_as_before_afterwards():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with interruptible():
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


def test_an_interrupt_waits_until_things_are_put_away():
    def put_away():
        with interruptible(), block_signals():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    done = []
    with pytest.raises(KeyboardInterrupt):
        put_away()
    assert done == [True]


@pytest.fixture
def idle_thread():
    """A thread that does not block signals, as a library may start one."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def put_away_under(send):
    """The actions before a signal that was sent while it was blocked ended the context."""
    done = []

    def put_away():
        with interruptible(), block_signals():
            send()
            time.sleep(0.1)  # Python runs the handlers of signals to any thread here
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        put_away()
    return done


def test_an_interrupt_that_another_thread_takes_waits_too(number, idle_thread):
    assert put_away_under(lambda: signal.pthread_kill(idle_thread.ident, number)) == [True]


@pytest.mark.usefixtures("idle_thread")
def test_an_interrupt_to_the_process_waits_whoever_takes_it(number):
    assert put_away_under(lambda: os.kill(os.getpid(), number)) == [True]


def test_what_was_held_back_before_is_held_back_after_it(number):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    with block_signals():
        pass
    assert number in signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_signal_that_is_not_held_back_is_not_put_off(number):
    assert not defer_signal(number)


def test_a_signal_that_is_held_back_is_put_off_until_it_no_longer_is(number):
    received = []
    before = signal.signal(number, lambda *_: received.append(number))
    try:
        with block_signals():
            assert defer_signal(number)
            assert received == []
        assert received == [number]
    finally:
        signal.signal(number, before)


IN_EXEC = """\
import sys
from allranks.interruption import interruptible
try:
    with interruptible():
        exec("import signal; signal.raise_signal(signal.SIGINT)")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_in_exec_as_dataclasses_use_it_leaves_the_exit_code_alone(tmp_path):
    (tmp_path / "in_exec.py").write_text(IN_EXEC)
    assert subprocess.run([sys.executable, "-m", "in_exec"], cwd=tmp_path, check=False).returncode == 130


@pytest.mark.parametrize("name", quick(1, ["SIGINT", "SIGTERM"]))
def test_an_interrupt_while_the_command_is_still_importing_is_told_without_a_traceback(tmp_path, name):
    (tmp_path / "argparse.py").write_text(f"import signal\nsignal.raise_signal(signal.{name})\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "allranks", "plan"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "\nallranks: interrupted\n")


@pytest.mark.parametrize("name", quick(1, ["SIGINT", "SIGTERM", "SIGHUP"]))
def test_a_signal_that_comes_when_all_is_said_leaves_the_exit_code_alone(tmp_path, name):
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, signal\natexit.register(signal.raise_signal, signal.{name})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "allranks", "--version"]
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
