"""Changes of a test are restored if one assignment can do that, else reported; those of wider fixtures are kept."""

import builtins
import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import logging
import logging.config
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import rpc
from torch.distributed.checkpoint import FileSystemWriter, async_save

from allranks.agent.rank.state import InitialState


@pytest.fixture
def initial_state(monkeypatch, tmp_path):
    """The initial state of this process, which is restored whatever a test does."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(logging.root.manager, "loggerDict", logging.root.manager.loggerDict.copy())
    outer = InitialState()
    for name in ("a", "b", "c", "d", "gone"):
        logging.getLogger(f"of_suite.{name}")
    logging.getLogger("of_suite.d").addHandler(logging.NullHandler())
    logging.getLogger("of_suite.gone").addHandler(logging.NullHandler())
    monkeypatch.chdir(tmp_path)
    yield InitialState()
    outer.restore()


def ignore(number):
    signal.signal(number, signal.SIG_IGN)


def remove_folder():
    folder = Path("gone").resolve()
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


def print_nothing(*_):
    """A trace function."""


LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)

RESTORED = {
    "the working directory": lambda: os.chdir("/"),
    "the umask": lambda: os.umask(0o777),
    "sys.path": lambda: sys.path.insert(0, "/nowhere"),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's deterministic algorithms": lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True),
    "torch's grad mode": lambda: torch.set_grad_enabled(mode=False),
    "torch's anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "torch's matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "resource limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, LIMIT[1])),
    "interval timers": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0),
    "faulthandler's watchdog": lambda: faulthandler.dump_traceback_later(1000.0),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "the switch interval": lambda: sys.setswitchinterval(1.0),
    "trace functions": lambda: sys.setprofile(print_nothing),
    "exception hooks": lambda: setattr(threading, "excepthook", None),
    "the garbage collector": lambda: gc.set_threshold(1000, 11, 12),
    "the socket timeout": lambda: socket.setdefaulttimeout(1.0),
    "logging.disable": logging.disable,
    "os.environ": lambda: setattr(os, "environ", {}),
    "sys.argv": sys.argv.clear,
    "the CPU affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "the temporary folder": lambda: setattr(tempfile, "tempdir", "/nowhere"),
    "the limit of integer digits": lambda: sys.set_int_max_str_digits(700),
    "the start method of multiprocessing": lambda: multiprocessing.set_start_method("spawn", force=True),
    "NumPy's error handling": lambda: np.seterr(all="raise"),
    "torch's autocast": torch.autocast("cpu", torch.bfloat16).__enter__,
    "torch's backends": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "signal handler SIGCHLD": lambda: ignore(signal.SIGCHLD),
    "signal handler SIGINT": lambda: ignore(signal.SIGINT),
    f"signal handler {signal.SIGRTMIN + 2:d}": lambda: ignore(signal.SIGRTMIN + 2),
    "variable LEFT_BEHIND": lambda: os.environ.update(LEFT_BEHIND="1"),
    "variable PATH": lambda: os.environ.pop("PATH"),
}
LEFT = {
    "logger root": lambda: logging.root.setLevel(5),
    "logger torch": lambda: logging.getLogger("torch").addHandler(logging.NullHandler()),
    "logger of_suite.d": lambda: setattr(logging.getLogger("of_suite.d"), "handlers", []),
    "logger of_suite": lambda: logging.getLogger("of_suite").setLevel("DEBUG"),
    "logger of_suite.a": lambda: setattr(logging.getLogger("of_suite.a"), "propagate", False),
    "logger of_suite.b": lambda: setattr(logging.getLogger("of_suite.b"), "disabled", True),
    "logger of_suite.c": lambda: logging.getLogger("of_suite.c").addFilter(print_nothing),
    "logger of_a_test": lambda: logging.getLogger("of_a_test").setLevel("ERROR"),
    "logger of_suite.gone": lambda: logging.root.manager.loggerDict.pop("of_suite.gone"),
    "imported modules": lambda: sys.modules.pop("socket"),
    "builtins": lambda: setattr(builtins, "input", None),
    "names of pytest": lambda: setattr(pytest, "raises", contextlib.suppress),
    "names of torch.distributed": lambda: setattr(distributed, "barrier", print_nothing),
    "names of torch.testing": lambda: setattr(torch.testing, "assert_close", print_nothing),
    "names of unittest.TestCase": lambda: delattr(unittest.TestCase, "assertEqual"),
    "the standard streams": lambda: setattr(sys, "stdin", None),
}


@pytest.mark.parametrize("name", RESTORED)
def test_state_that_one_assignment_restores_is_restored(initial_state, name):
    RESTORED[name]()
    assert initial_state.restore() == ([name], [])
    assert initial_state.restore() == ([], [])


@pytest.fixture
def undone(monkeypatch):
    """Undo the changes of :data:`LEFT` to this process."""
    modules, handlers = sys.modules.copy(), [*logging.getLogger("torch").handlers]
    monkeypatch.setattr(builtins, "input", input)
    monkeypatch.setattr(pytest, "raises", pytest.raises)
    monkeypatch.setattr(distributed, "barrier", distributed.barrier)
    monkeypatch.setattr(torch.testing, "assert_close", torch.testing.assert_close)
    monkeypatch.setattr(unittest.TestCase, "assertEqual", unittest.TestCase.assertEqual)
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    level = logging.root.level
    yield
    sys.modules.update(modules)
    logging.root.setLevel(level)
    logging.getLogger("torch").handlers = handlers


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("name", LEFT)
def test_state_that_cannot_be_restored_with_certainty_is_reported(initial_state, name):
    LEFT[name]()
    assert initial_state.restore() == ([], [name])


@pytest.mark.usefixtures("undone")
def test_modules_and_names_are_restored_for_the_tear_down(initial_state):
    barrier, distributed.barrier = distributed.barrier, print_nothing
    sys.modules.clear()
    sys.meta_path.clear()
    _, left = initial_state.restore()
    assert left == ["imported modules", "names of torch.distributed"]
    assert (sys.modules["socket"], distributed.barrier) == (socket, barrier)
    assert importlib.import_module("wave")


def test_a_logging_configuration_changes_every_logger(initial_state):
    logging.config.dictConfig({"version": 1, "loggers": {"of_a_test": {"level": "INFO"}}})
    restored, left = initial_state.restore()
    assert restored == []
    assert {"logger of_suite.d", "logger of_suite.gone", "logger of_a_test"} <= set(left)


def test_a_new_logger_is_not_a_change(initial_state):
    made = logging.getLogger("of_a_test.made")
    assert initial_state.restore() == ([], [])
    made.setLevel(logging.ERROR)
    assert initial_state.restore() == ([], ["logger of_a_test.made"])


def test_a_logger_configured_by_an_imported_module_stays(initial_state, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "logs.py").write_text("import logging\nlogging.getLogger('of_module').setLevel('ERROR')\n")
    initial_state = InitialState()
    importlib.import_module("logs")
    assert initial_state.restore() == ([], [])
    logging.getLogger("of_module").setLevel("DEBUG")
    assert initial_state.restore() == ([], ["logger of_module"])


def test_a_logger_configured_by_a_wider_fixture_stays_until_its_tear_down(initial_state):
    logger = logging.getLogger("of_suite")
    with initial_state.extending():
        logger.setLevel("DEBUG")
    assert initial_state.restore() == ([], [])
    logger.setLevel("NOTSET")
    initial_state.accept_restored()
    assert initial_state.restore() == ([], [])


def test_the_time_zone_is_that_of_its_variable(initial_state):
    before = time.tzname
    os.environ["TZ"] = "Antarctica/Troll"
    time.tzset()
    assert initial_state.restore() == (["variable TZ"], [])
    assert time.tzname == before


def test_a_mode_that_cannot_be_restored_is_reported(initial_state):
    with torch.inference_mode():
        _, left = initial_state.restore()
    assert "torch's inference mode" in left


def leave_a_dispatch_mode():
    FakeTensorMode().__enter__()
    return torch.utils._python_dispatch._pop_mode


def leave_a_thread():
    go_on = threading.Event()

    def of_a_test():
        go_on.wait()

    threading.Thread(target=of_a_test).start()
    return go_on.set


def leave_a_pool_at_work():
    go_on, begun = threading.Event(), threading.Event()

    def of_a_test():
        begun.set()
        go_on.wait()

    pool = ThreadPoolExecutor(1)
    pool.submit(of_a_test)
    assert begun.wait(60)

    def end():
        go_on.set()
        pool.shutdown()

    return end


class SlowWriter(FileSystemWriter):
    """Writes a checkpoint on request."""

    def __init__(self, path):
        super().__init__(path)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write_data(self, plan, planner):
        self.begun.set()
        self.go_on.wait()
        return super().write_data(plan, planner)


def leave_a_checkpoint():
    writer = SlowWriter(Path.cwd())
    with warnings.catch_warnings(action="ignore"):  # torch warns that there is no process group
        saved = async_save({"weight": torch.ones(1)}, storage_writer=writer)
        assert writer.begun.wait(60)

    def end():
        writer.go_on.set()
        saved.result()

    return end


def leave_another_descriptor():
    kept = os.dup(0)
    os.close(0)
    return lambda: os.dup2(kept, 0)


def leave_an_agent():
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{Path.cwd()}/store")
    with warnings.catch_warnings(action="ignore"):  # torch warns about itself
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    return functools.partial(rpc.shutdown, graceful=False)


@pytest.mark.parametrize(
    ("name", "leave"),
    [
        ("torch's RPC agent", leave_an_agent),
        ("torch's modes", leave_a_dispatch_mode),
        ("running threads", leave_a_thread),
        ("running threads", leave_a_pool_at_work),
        ("running threads", leave_a_checkpoint),
        ("the standard descriptors", leave_another_descriptor),
    ],
)
def test_permanent_changes_replace_the_gang(initial_state, name, leave):
    undo = leave()
    try:
        assert initial_state.restore() == ([], [name])
    finally:
        undo()


def test_an_idle_pool_stays(initial_state):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(sum, (1, 2)).result() == 3
        assert initial_state.restore() == ([], [])


def test_a_closed_stream_replaces_the_gang(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    initial_state = InitialState()
    sys.stdout.close()
    assert initial_state.restore() == ([], ["the standard streams"])


def test_modules_and_finders_that_a_test_adds_stay(initial_state, monkeypatch):
    monkeypatch.setitem(sys.modules, "of_a_test", threading)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object()])
    assert initial_state.restore() == ([], [])


def test_changes_by_an_imported_module_stay(initial_state, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late.py").write_text("import os, later\nos.environ['OF_MODULE'] = '1'\nos.umask(0o7)\n")
    (tmp_path / "later.py").write_text("import sys\nsys.setrecursionlimit(4321)\n")
    initial_state = InitialState()
    os.environ["OF_TEST"] = "1"
    importlib.import_module("late")
    assert initial_state.restore() == (["variable OF_TEST"], [])
    assert (os.environ["OF_MODULE"], os.umask(0o7), sys.getrecursionlimit()) == ("1", 0o7, 4321)


def test_a_timer_that_was_there_may_stay():
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)
    try:
        others = InitialState()
        signal.setitimer(signal.ITIMER_VIRTUAL, 500.0)
        assert others.restore() == ([], [])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def test_the_device_is_restored_without_a_mode_that_slows_down_all_functions(initial_state):
    torch.set_default_device("meta")
    initial_state.restore()
    assert torch.ones(1).device.type == "cpu"
    assert not torch.overrides._len_torch_function_stack()


def test_a_folder_that_was_removed_is_left(initial_state):
    remove_folder()
    assert initial_state.restore() == (["the working directory"], [])


def test_state_that_cannot_be_restored_is_reported(initial_state, tmp_path):
    os.chdir("/")
    tmp_path.rmdir()
    assert initial_state.restore() == ([], ["the working directory"])


def test_changes_by_a_wider_fixture_stay_until_its_tear_down(initial_state):
    with initial_state.extending():
        os.environ["LEFT_BEHIND"] = "1"
    assert initial_state.restore() == ([], [])
    os.environ["LEFT_BEHIND"] = "2"
    assert initial_state.restore() == (["variable LEFT_BEHIND"], [])
    assert os.environ["LEFT_BEHIND"] == "1"
    del os.environ["LEFT_BEHIND"]
    assert initial_state.restore() == (["variable LEFT_BEHIND"], [])
    del os.environ["LEFT_BEHIND"]
    initial_state.accept_restored()
    assert initial_state.restore() == ([], [])
    os.environ["LEFT_BEHIND"] = "1"
    assert initial_state.restore() == (["variable LEFT_BEHIND"], [])


def test_a_test_that_undoes_changes_of_a_wider_fixture_is_reported(initial_state):
    with initial_state.extending():
        os.environ["LEFT_BEHIND"] = "1"
    del os.environ["LEFT_BEHIND"]
    assert initial_state.restore() == (["variable LEFT_BEHIND"], [])
    assert os.environ.pop("LEFT_BEHIND") == "1"


def test_variables_of_pytest_and_torch_are_ignored(initial_state):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/x"
    try:
        assert initial_state.restore() == ([], [])
    finally:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]


def test_the_exception_hook_of_a_default_group_is_ignored(initial_state, monkeypatch):
    before = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", before)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.destroy_process_group()
    assert sys.excepthook is not before
    assert initial_state.restore() == ([], [])
