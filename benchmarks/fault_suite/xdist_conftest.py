"""Makes each worker of pytest-xdist a rank; the benchmark copies this to ``conftest.py``.

The controller appends to the file ``$HEARD`` one JSON object for each thing that it learns of a test.
"""

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed

WORKER = os.environ.get("PYTEST_XDIST_WORKER")


@pytest.fixture(scope="session", autouse=True)
def _process_group() -> Iterator[None]:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=int(str(WORKER).removeprefix("gw")),
        world_size=2,
        timeout=timedelta(seconds=float(os.environ["GROUP_LIMIT"])),
    )
    yield
    distributed.destroy_process_group()


def _heard(**fields: object) -> None:
    if WORKER is None:
        with Path(os.environ["HEARD"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), **fields}) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """A worker has begun a test."""
    _heard(test=nodeid.rpartition("::")[2], when="start")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A worker has ended a phase of a test, or has died in it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = (
        crash.message if crash else report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    )
    node = getattr(report, "node", None)
    _heard(
        test=report.nodeid.rpartition("::")[2],
        when=report.when,
        worker=node.gateway.id if node else "gw?",
        outcome=report.outcome,
        message=message[:1000],
    )
