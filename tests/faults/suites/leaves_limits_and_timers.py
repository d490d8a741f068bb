"""Tests leave limits, timers, levels and modes changed: each next one begins as the first did."""

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time

import torch

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 8,
}


def limit_of_descriptors():
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_fault():
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, limit_of_descriptors()[1]))


def test_has_descriptors():
    for number in [os.dup(0) for _ in range(30)]:
        os.close(number)


def test_leaves_a_hard_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))


def test_has_descriptors_again():
    assert limit_of_descriptors()[0] > 30


def test_leaves_an_alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.3)


def test_is_not_rung():
    assert not any(signal.getitimer(signal.ITIMER_REAL))
    time.sleep(0.5)


def test_leaves_a_watchdog():
    faulthandler.dump_traceback_later(0.3, exit=True)


def test_is_not_bitten():
    time.sleep(0.5)


def test_leaves_little_room_to_recurse():
    sys.setrecursionlimit(120)


def test_recurses():
    def depth(number):
        return number and depth(number - 1)

    depth(300)


def test_leaves_the_interpreter_traced():
    sys.settrace(lambda *_: None)
    sys.setswitchinterval(1.0)
    gc.disable()
    gc.set_threshold(1)


def test_is_not_traced():
    assert sys.gettrace() is None
    assert sys.getswitchinterval() < 0.1
    assert gc.isenabled()


def test_leaves_logging_and_sockets():
    logging.disable()
    socket.setdefaulttimeout(0.001)


def test_logs(caplog):
    logging.getLogger("here").error("a word")
    assert "a word" in caplog.text
    assert socket.getdefaulttimeout() is None


def test_leaves_another_time_zone():
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def test_has_its_time_zone():
    assert time.localtime(0).tm_hour == time.gmtime(0).tm_hour + time.localtime(0).tm_gmtoff // 3600
    assert time.tzname[0] != "JST"


def test_leaves_modes_of_torch():
    torch.set_anomaly_enabled(True)
    torch.set_float32_matmul_precision("medium")
    torch.inference_mode().__enter__()


def test_has_no_modes():
    assert not torch.is_anomaly_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.get_float32_matmul_precision() == "highest"


def test_leaves_another_environment():
    os.environ = dict(os.environ)  # noqa: B003 - that is the fault


def test_has_the_environment():
    os.environ["SET_IN_A_TEST"] = "1"
    assert os.getenvb(b"SET_IN_A_TEST") == b"1"
