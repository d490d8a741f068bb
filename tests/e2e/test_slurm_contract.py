"""The contract of engines, on a real SLURM cluster of isolated nodes; `nox -s slurm` does all of it."""

import os
import sys
from importlib.util import find_spec

import pytest

from allranks.engine.kind import JobEnvironment
from allranks.engine.package import copied_package
from allranks.engine.slurm import SlurmEngine
from allranks.engine_contract import EngineContract
from allranks.matrix.model import Slurm

ALL = "ALLRANKS_SLURM"

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(find_spec("torch") is None, reason="no torch here"),
    pytest.mark.skipif(not os.environ.get(ALL), reason=f"a minute: nox -s slurm, or {ALL}=1"),
]


class TestOnACluster(EngineContract):
    @pytest.fixture
    def engine(self, slurm_cluster, tmp_path, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", slurm_cluster.environment["SLURM_CONF"])
        spool = tmp_path / "spool"
        yield SlurmEngine(Slurm(), spool, copied_package(spool / "package"))
        assert [path.name for path in spool.iterdir()] == ["package"]
        slurm_cluster.wait_until("", "squeue", "--me", "--noheader")

    @pytest.fixture
    def environment(self):
        return JobEnvironment(python=sys.executable)
