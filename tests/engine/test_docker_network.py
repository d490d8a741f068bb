"""Helpers beside the nodes of a job, against a daemon that only remembers."""

from dataclasses import replace

import pytest
from fake_daemon import ID, end_agent, engine_of, frame

from allranks.errors import EngineError
from allranks.harness.config import Stress

HELPERS = f"{ID}-2", f"{ID}-3"


@pytest.fixture
def spec(make_spec):
    made = make_spec(image="allranks/cpu:1", run_id="r", nodes=2)
    return replace(made, agent=replace(made.agent, stress=Stress(count=1, network="light")))


def start(client, spec, *lines):
    for helper, line in zip(HELPERS, lines, strict=False):
        client.wire(helper).daemon.sendall(frame(1, line))
    with engine_of(client).start(spec):
        for each in (ID, f"{ID}-1"):
            end_agent(client, each)


def test_each_node_has_a_helper_that_may_administrate_its_network_and_nothing_else(fake, spec):
    client = fake()
    start(client, spec, b"ready\n", b"ready\n")
    requests = [call[2] for call in client.calls if call[0] == "create"]
    assert [each["host_config"].get("cap_add") for each in requests] == [None, None, ["NET_ADMIN"], ["NET_ADMIN"]]
    assert {tuple(each["host_config"]["cap_drop"]) for each in requests} == {("ALL",)}
    assert [each["host_config"]["network_mode"] for each in requests[2:]] == [f"container:{ID}", f"container:{ID}-1"]
    assert requests[2]["labels"].items() >= spec.labels.items()
    assert requests[2]["command"][-1] == "1=10.0.0.1"


def test_helpers_go_before_the_nodes_whose_network_they_share(fake, spec):
    client = fake()
    start(client, spec, b"ready\n", b"ready\n")
    assert [call[1] for call in client.calls if call[0] == "remove"] == [*reversed(HELPERS), f"{ID}-1", ID]
    with pytest.raises(BrokenPipeError):  # the end of its input
        client.wire(HELPERS[0]).daemon.sendall(b"x")


def test_a_kernel_that_cannot_do_it_is_an_error_before_any_test_runs(fake, spec):
    client = fake()
    with pytest.raises(EngineError, match="cannot be disturbed") as error:
        start(client, spec, b"No such file or directory (NFQUEUE)\n")
    assert "No such file or directory (NFQUEUE)" in error.value.why
    assert "modprobe" in error.value.remedy
    assert [call[1] for call in client.calls if call[0] == "remove"] == [HELPERS[0], f"{ID}-1", ID]


def test_without_network_skew_there_is_no_helper(fake, spec):
    client = fake()
    calm = replace(spec, agent=replace(spec.agent, stress=Stress(count=1, skew="heavy")))
    start(client, calm)
    assert client.names.count("create") == 2
