import json
from dataclasses import replace

import pytest
from agent_run import CONFIG

from allranks.agent.supervisor.job import cell_environment
from allranks.protocol.config import AgentConfig, GpuToCheck, seed_of_test


def test_a_config_reads_back_as_it_was_written(tmp_path):
    config = replace(CONFIG, pytest_args=("-k", "a or ü"), isolation="job", master_addr="node0")
    config = replace(config, check_gpus=(GpuToCheck(gpu="GPU-a", visible="0", name="GPU 0 (GPU-a)"),))
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert AgentConfig.read(path) == config


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("limits"),
        lambda fields: fields.pop("seed"),
        lambda fields: fields.update(surprise=1),
        lambda fields: fields["limits"].pop("job"),
    ],
)
def test_a_config_of_another_version_is_rejected(tmp_path, change):
    fields = json.loads(CONFIG.to_json())
    change(fields)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="is not an agent config of this version"):
        AgentConfig.read(path)


def test_the_environment_describes_the_cell():
    environment = cell_environment(replace(CONFIG, world_size=4, gpu_count=2, init_method="tcp"), {})
    expected = {"BACKEND": "gloo", "WORLD_SIZE": "4", "INIT_METHOD": "tcp", "ALLRANKS_GPU_COUNT": "2"}
    assert expected.items() <= environment.items()


def test_the_users_number_of_threads_is_kept():
    assert "OMP_NUM_THREADS" not in cell_environment(CONFIG, {"OMP_NUM_THREADS": "3"})
    assert cell_environment(CONFIG, {})["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("nodeid", ["a.py::test_1", "a.py::test[\ud800]", "ü"])
def test_each_test_has_a_seed_of_32_bits(nodeid):
    assert 0 <= seed_of_test(7, nodeid) < 1 << 32
    assert seed_of_test(7, nodeid) == seed_of_test(7, nodeid) != seed_of_test(8, nodeid)
