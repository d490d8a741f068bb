"""The contract of engines, on a real SLURM cluster of isolated nodes."""

import sys

import pytest
from engine_contract import EngineContract

from allranks.engines.base import JobEnvironment
from allranks.engines.package import copied_package
from allranks.plugins.slurm.engine import SlurmEngine
from allranks.plugins.slurm.settings import Slurm

pytestmark = pytest.mark.slurm


class TestOnACluster(EngineContract):
    @pytest.fixture
    def engine(self, slurm_cluster, tmp_path, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", slurm_cluster.environment["SLURM_CONF"])
        spool = tmp_path / "spool"
        yield SlurmEngine(Slurm(spool=str(spool)), copied_package(spool / "package"))
        assert [path.name for path in spool.iterdir()] == ["package"]
        slurm_cluster.wait_until("", "squeue", "--me", "--noheader")

    @pytest.fixture
    def environment(self):
        return JobEnvironment(python=sys.executable)
