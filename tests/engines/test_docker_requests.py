"""The docker engine's requests to the daemon."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.engines.base import LISTS, FileCopy, Passthrough, resources
from allranks.engines.docker_requests import (
    RESULTS_BYTES,
    USER,
    Daemon,
    _cpu_settings,
    container_environment,
    container_name,
    container_title,
    creation_request,
    gpu_settings,
    job_archive,
    keeper_arguments,
    network_request,
    specs_of_nodes,
    volume_names,
)
from allranks.ownership import HOST_LABEL
from allranks.protocol.config import GpuToCheck

DAEMON = Daemon(cpus=8, limits_cpus=True, has_seccomp=True)


@pytest.fixture
def request_of(make_spec):
    return creation_request(make_spec(image="i", run_id="r", gpus=("GPU-a",)), {HOST_LABEL: "host"}, 4096, DAEMON)


def test_containers_have_a_read_only_root(request_of):
    assert request_of["host_config"]["read_only"] is True


def test_containers_have_no_capability_and_get_none(request_of):
    assert request_of["host_config"]["cap_drop"] == ["ALL"]
    assert request_of["host_config"]["security_opt"][0] == "no-new-privileges"
    assert not {"privileged", "cap_add", "devices", "pid_mode", "ipc_mode", "userns_mode"} & set(
        request_of["host_config"]
    )


def test_containers_run_as_an_unassigned_user(request_of):
    assert request_of["user"] == f"{USER}:{USER}"


def test_the_first_process_of_a_container_is_the_one_that_keeps_its_files(request_of):
    """Tests could open the container's output through Docker's init process."""
    assert "init" not in request_of["host_config"]


def test_containers_have_limits_from_the_job(make_spec):
    spec = make_spec(image="i")
    config = creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]
    assert config["pids_limit"] == spec.resources.pids
    assert config["mem_limit"] == config["memswap_limit"] == spec.resources.memory_bytes
    assert config["shm_size"] == spec.resources.shm_bytes


def test_containers_have_no_network_and_know_their_own_name(request_of):
    assert request_of["host_config"]["network_mode"] == "none"
    assert request_of["hostname"] == "node0"
    assert request_of["host_config"]["extra_hosts"] == {"node0": "127.0.0.1"}


def test_containers_mount_volumes_of_their_own_and_nothing_of_the_host(request_of, make_spec):
    files, shared = volume_names(make_spec(run_id="r"))
    mounts = request_of["host_config"]["mounts"]
    assert [(mount["Target"], mount["Type"], mount["Source"]) for mount in mounts] == [
        ("/job", "volume", files),
        ("/job/shared", "volume", shared),
    ]
    assert "binds" not in request_of["host_config"]
    assert "nosuid,nodev" in request_of["host_config"]["tmpfs"]["/tmp"]


def test_every_object_carries_the_labels_by_which_it_is_reaped(make_spec):
    spec = make_spec(image="i", run_id="r")
    wanted = {**spec.labels, "allranks.host": "host"}
    request = creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)
    assert wanted.items() <= request["labels"].items()
    assert wanted == network_request(spec, {HOST_LABEL: "host"})["labels"]
    for mount in request["host_config"]["mounts"]:
        assert mount["VolumeOptions"]["Labels"] == wanted


def test_volumes_have_room_for_what_is_copied_in_for_results_and_for_what_tests_may_write(make_spec):
    spec = make_spec(image="i")
    job, shared = creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]["mounts"]
    options = [mount["VolumeOptions"]["DriverConfig"]["Options"] for mount in (job, shared)]
    assert [option["type"] for option in options] == ["tmpfs", "tmpfs"]
    assert options[0]["o"].startswith(f"size={4096 + RESULTS_BYTES},")
    assert options[1]["o"].startswith(f"size={spec.resources.disk_bytes},")
    assert all("nosuid,nodev" in option["o"] for option in options)
    assert (f"uid={USER}" in options[0]["o"], f"uid={USER}" in options[1]["o"]) == (False, True)


def test_containers_get_exactly_the_leased_gpus_by_id(request_of):
    [gpus] = request_of["host_config"]["device_requests"]
    assert gpus["DeviceIDs"] == ["GPU-a"]
    assert gpus["Count"] == 0  # the daemon refuses a request that has both
    assert (gpus["Driver"], gpus["Capabilities"]) == ("nvidia", [["gpu"]])


def test_containers_without_a_lease_ask_for_no_device(make_spec):
    assert gpu_settings(make_spec(image="i")) == {"device_requests": []}


def test_cdi_devices_are_asked_for_by_their_names(make_spec):
    spec = make_spec(image="i", gpus=("GPU-a", "example.com/gpu=7"), passthrough=Passthrough(driver="cdi"))
    [request] = gpu_settings(spec)["device_requests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-a", "example.com/gpu=7"])


def test_gpus_of_amd_are_device_nodes_with_the_groups_that_may_use_them(make_spec):
    nodes = ("/dev/kfd", "/dev/dri/renderD129")
    passthrough = Passthrough(driver="rocm", nodes=nodes, groups=(44, 110))
    settings = gpu_settings(make_spec(image="i", gpus=("GPU-a",), passthrough=passthrough))
    assert settings == {"devices": [f"{node}:{node}:rw" for node in nodes], "group_add": ["44", "110"]}


def test_logs_are_not_kept_by_the_daemon(request_of):
    assert request_of["host_config"]["log_config"] == {"type": "none"}
    assert request_of["host_config"]["cgroupns"] == "private"


def test_containers_write_no_core_files_and_have_no_other_limit_of_a_user(request_of):
    """A limit of open files may exceed the daemon's, and one of processes counts those of all jobs of the host."""
    assert request_of["host_config"]["ulimits"] == [{"Name": "core", "Soft": 0, "Hard": 0}]
    assert request_of["host_config"]["pids_limit"] > 0


@given(ranks=st.integers(1, 64), cpus=st.integers(1, 256))
def test_a_job_may_use_a_cpu_for_each_rank_and_leaves_some_where_there_are_many(ranks, cpus):
    made = _cpu_settings(ranks, replace(DAEMON, cpus=cpus))
    most = made["nano_cpus"] / 10**9
    assert min(ranks, cpus) <= most <= cpus  # the daemon refuses more than there are
    assert most < cpus or ranks >= cpus or cpus < 4
    assert most >= cpus * 3 / 4
    assert 2 <= made["cpu_shares"] <= 262144  # what the kernel takes


def test_a_job_counts_against_others_by_its_ranks(make_spec):
    """A job of two ranks gets as many as any other container, 1024."""
    config = creation_request(make_spec(image="i"), {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]
    assert config["cpu_shares"] == 512 * make_spec().resources.cpus
    assert [_cpu_settings(ranks, DAEMON)["cpu_shares"] for ranks in (1, 2, 8)] == [512, 1024, 4096]


def test_a_kernel_that_cannot_limit_cpus_is_asked_for_shares_alone():
    """The daemon would reject the container."""
    assert set(_cpu_settings(2, replace(DAEMON, limits_cpus=False))) == {"cpu_shares"}


def test_the_capabilities_of_a_daemon_are_read_from_its_info():
    info = {"NCPU": 4, "CpuCfsQuota": True, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}
    assert Daemon.of_info(info) == Daemon(cpus=4, limits_cpus=True, has_seccomp=True)
    assert Daemon.of_info({"NCPU": 4, "SecurityOptions": None}) == Daemon(cpus=4, limits_cpus=False, has_seccomp=False)


def profile_of(request):
    [option] = [option for option in request["host_config"]["security_opt"] if option.startswith("seccomp=")]
    return json.loads(option.removeprefix("seccomp="))


def test_system_calls_are_filtered_unless_the_matrix_file_or_the_kernel_prevents_it(make_spec):
    spec = make_spec(image="i")
    assert profile_of(creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON))["defaultAction"] == "SCMP_ACT_ERRNO"
    for changed, daemon in ((replace(spec, seccomp="default"), DAEMON), (spec, replace(DAEMON, has_seccomp=False))):
        made = creation_request(changed, {HOST_LABEL: "host"}, 4096, daemon)
        assert made["host_config"]["security_opt"] == ["no-new-privileges"]


def test_agents_are_started_with_the_folders_of_the_volume(request_of):
    assert request_of["entrypoint"] == ["python3"]
    assert request_of["command"] == keeper_arguments(0)
    arguments = " ".join(keeper_arguments(0))
    assert "-I -S /job/agent/allranks/agent/__main__.py keep --config /job/agent/config.json" in arguments
    assert "--results /job/results" in arguments


def test_variables_of_the_job_win_except_those_that_make_it_run(make_spec):
    variables = {"HOME": "/tmp", "PYTHONPATH": "/evil", "NCCL_DEBUG": "WARN"}
    made = container_environment(make_spec(run_id="r", environment=variables))
    assert (made["HOME"], made["NCCL_DEBUG"]) == ("/tmp", "WARN")
    assert made["PYTHONPATH"] == "/job/agent"


def test_the_variable_of_a_list_of_tests_is_its_path(make_spec):
    copies = (FileCopy(source=Path("list.json"), target=LISTS / "DISABLED_TESTS_FILE"),)
    made = container_environment(make_spec(run_id="r", files=copies))
    assert made["DISABLED_TESTS_FILE"] == "/job/code/.test-lists/DISABLED_TESTS_FILE"


def entries(archive):
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.pieces()))) as tar:
        return {entry.name: entry for entry in tar}


def test_archive_has_each_folder_of_the_job_and_its_config(make_spec):
    assert {"agent", "agent/config.json", "code", "results"} == set(entries(job_archive([make_spec()], ())))


@pytest.fixture
def nodes_of(make_spec):
    """The specification of each node of a job."""

    def make(**changes):
        return specs_of_nodes(make_spec(image="i", run_id="r", nodes=2, **changes), "hush-hush")

    return make


def test_a_job_on_one_node_is_its_nodes_and_needs_no_token(make_spec):
    spec = make_spec(image="i")
    assert specs_of_nodes(spec, "hush-hush") == [spec]


def test_nodes_meet_at_the_leaders_name_and_have_one_token(nodes_of):
    posts = [spec.agent.node_config for spec in nodes_of()]
    assert [post.node for post in posts] == [0, 1]
    assert {(post.leader, post.port, post.token) for post in posts} == {("node0", 29400, "hush-hush")}
    assert {spec.agent.master_addr for spec in nodes_of()} == {"node0"}


def test_each_node_has_a_container_with_the_node_in_its_name(nodes_of):
    specs = nodes_of()
    first, second = map(container_name, specs)
    assert "-node0-" in first
    assert "-node1-" in second
    assert [container_title(spec) for spec in specs] == [
        "The container of node 0 of gloo-w2-g0-env/tiny", "The container of node 1 of gloo-w2-g0-env/tiny",
    ]  # fmt: skip
    requests = [creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON) for spec in specs]
    assert [request["hostname"] for request in requests] == ["node0", "node1"]
    assert [request["labels"]["allranks.node"] for request in requests] == ["0", "1"]


def test_nodes_are_in_the_jobs_network_alone_by_their_names(nodes_of):
    first, second = nodes_of()
    network = network_request(first, {HOST_LABEL: "host"})["name"]
    assert network == network_request(second, {HOST_LABEL: "host"})["name"]
    for node, spec in enumerate((first, second)):
        request = creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)
        assert request["host_config"]["network_mode"] == network
        assert request["networking_config"] == {"EndpointsConfig": {network: {"Aliases": [f"node{node}"]}}}


def test_the_network_of_nodes_leads_nowhere_and_not_to_the_host(nodes_of):
    request = network_request(nodes_of()[0], {HOST_LABEL: "host"})
    assert request["internal"] is True
    assert request["options"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}


def test_nodes_resolve_only_the_names_of_nodes(nodes_of):
    config = creation_request(nodes_of()[1], {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]
    assert (config["dns"], config["dns_search"]) == (["127.0.0.1"], ["."])
    assert "extra_hosts" not in config


def test_ranks_on_several_nodes_use_the_jobs_network_unless_the_matrix_file_changes_it(nodes_of):
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    made = container_environment(nodes_of()[0])
    assert {name: made[name] for name in names} == dict.fromkeys(names, "eth0")
    assert container_environment(nodes_of(environment={names[2]: "lo"})[0])[names[2]] == "lo"


def test_nodes_share_volumes_in_which_each_has_its_own_config_and_results(nodes_of):
    specs = nodes_of()
    mounts = [creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]["mounts"] for spec in specs]
    assert mounts[0] == mounts[1]
    assert tuple(mount["Source"] for mount in mounts[0]) == volume_names(specs[0])
    assert f"size={4096 + 2 * RESULTS_BYTES}," in mounts[0][0]["VolumeOptions"]["DriverConfig"]["Options"]["o"]
    for node, own in enumerate(("/job", "/job/node-1")):
        arguments = " ".join(keeper_arguments(node))
        assert f"--config {own}/agent/config.json --code /job/code --results {own}/results" in arguments
    found = entries(job_archive(specs, ()))
    assert {"results", "code", "node-1/results"} <= set(found)
    assert {entry.uid for entry in found.values()} == {USER}


def test_a_config_can_be_read_by_the_jobs_user_alone_and_has_the_token(nodes_of):
    archive = job_archive(nodes_of(), ())
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.pieces()))) as tar:
        for node, name in enumerate(("agent/config.json", "node-1/agent/config.json")):
            assert tar.getmember(name).mode == 0o600
            assert json.load(tar.extractfile(name))["node_config"] == {
                "node": node, "leader": "node0", "port": 29400, "token": "hush-hush",
            }  # fmt: skip
    assert not any(
        "hush-hush" in str(creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)) for spec in nodes_of()
    )


def test_each_node_is_given_its_own_gpus_and_no_others(nodes_of):
    requests = [
        gpu_settings(spec)["device_requests"][0]["DeviceIDs"] for spec in nodes_of(gpus=("GPU-a", "GPU-b", "GPU-c"))
    ]
    assert requests == [["GPU-a", "GPU-b"], ["GPU-c"]]


def test_each_node_is_given_the_device_nodes_of_its_own_gpus_of_amd(nodes_of):
    passthrough = Passthrough(driver="rocm", nodes=("/dev/kfd", "/dev/dri/a", "/dev/dri/b"), numbers=(4, 7))
    specs = nodes_of(gpus=("a", "b"), passthrough=passthrough)
    assert [gpu_settings(spec)["devices"] for spec in specs] == [
        ["/dev/kfd:/dev/kfd:rw", f"/dev/dri/{name}:/dev/dri/{name}:rw"] for name in ("a", "b")
    ]


def test_each_node_has_the_limits_of_its_own_ranks(nodes_of):
    each = tuple(resources(world_size=size, memory_mib=None, seconds=60) for size in (2, 1))
    made = [
        creation_request(spec, {HOST_LABEL: "host"}, 4096, DAEMON)["host_config"]
        for spec in nodes_of(node_resources=each)
    ]
    for found, wanted in zip(made, each, strict=True):
        assert (found["mem_limit"], found["pids_limit"], found["shm_size"]) == (
            wanted.memory_bytes, wanted.pids, wanted.shm_bytes,
        )  # fmt: skip


def test_no_agent_tries_a_gpu_that_its_node_does_not_have(nodes_of):
    to_check = tuple(GpuToCheck(gpu=gpu, visible=gpu, name=gpu) for gpu in ("a", "b"))
    specs = nodes_of(gpus=("a", "b"), check_gpus=to_check)
    assert [[check.gpu for check in spec.agent.check_gpus] for spec in specs] == [["a"], ["b"]]


def test_a_gpu_that_is_known_by_its_number_has_that_among_those_of_its_node(nodes_of):
    to_check = tuple(GpuToCheck(gpu=gpu, visible=str(place), name=gpu) for place, gpu in enumerate("ab"))
    specs = nodes_of(gpus=("a", "b"), check_gpus=to_check)
    assert [[check.visible for check in spec.agent.check_gpus] for spec in specs] == [["0"], ["0"]]


def test_a_copied_project_is_on_pythons_path(make_spec, tmp_path):
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "__init__.py").write_text("WORD = 'one'")
    spec = make_spec(image="i", python_path=(tmp_path,))
    assert container_environment(spec)["PYTHONPATH"] == "/job/agent:/job/project"
    with tarfile.open(fileobj=io.BytesIO(b"".join(job_archive((spec,), ()).pieces()))) as archive:
        assert "project/hello/__init__.py" in archive.getnames()
    assert container_environment(make_spec(image="i"))["PYTHONPATH"] == "/job/agent"
