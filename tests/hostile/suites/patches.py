"""Attacks that replace or damage modules in memory."""

import datetime as dt
import enum
import gc
import json
import signal
import time
from contextlib import suppress

import pytest
from _pytest import reports, runner
from reach import attack


@attack("honest", "bad")
def handles_every_signal(rank):
    """Rank 1 ignores every signal and blocks the rest, and hangs."""
    if rank == 1:
        for number in signal.valid_signals():
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(3600)


@attack("honest", "any")
def patches_json(rank):
    """Rank 1 makes json write and read nonsense."""
    if rank == 1:
        json.dumps = lambda *_, **__: '{"outcome": "passed"}\n\x1e{"event": ["x"]}'
        json.loads = lambda *_, **__: []
        json.JSONEncoder.encode = lambda *_: 1 / 0
        json.JSONDecoder.decode = lambda *_: None


@attack("honest", "any")
def patches_objects(rank):
    """Rank 1 turns failures into passes in all lists, dictionaries and enumerations that Python tracks."""
    for item in gc.get_objects() if rank == 1 else ():
        if type(item) is list:
            item[:] = ["passed" if type(value) is str and value == "failed" else value for value in item]
        elif type(item) is dict:
            item.update({key: "passed" for key, value in item.items() if type(value) is str and value == "failed"})
        elif isinstance(item, enum.EnumType) and "FAILED" in item.__members__:
            item.FAILED._value_ = "passed"


@attack("honest", "any")
def patches_pytest(rank):
    """Rank 1 makes pytest report a pass of whatever it runs."""
    if rank == 1:
        genuine = reports.TestReport.from_item_and_call

        def passed(item, call):
            report = genuine(item, pytest.CallInfo.from_call(lambda: None, when=call.when))
            report.outcome = "passed"
            return report

        reports.TestReport.from_item_and_call = passed
        runner.call_and_report = lambda item, when, *_, **__: passed(item, pytest.CallInfo.from_call(int, when))


@attack("honest", "any")
def stops_clocks(rank):
    """Rank 1 makes every clock raise, for good."""
    if rank == 1:
        for name in dir(time):
            if not name.startswith("_"):
                setattr(time, name, lambda *_: 1 / 0)
        dt.datetime = None
