"""Names of objects that runs share are unique, valid and readable."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.engines.base import unique_name
from allranks.engines.docker_requests import container_name, network_of, node_name, specs_of_nodes, volume_names
from allranks.ownership import image_lock
from allranks.runner import gpu_leases, unhealthy_gpus

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)
"""A label of RFC 1123; Docker's names may have other characters, but not at the start."""

PARTS = st.lists(st.text(alphabet=st.sampled_from("ab2-_./@\u00e4\udc80"), max_size=90), min_size=1, max_size=4)


@given(st.lists(PARTS.map(tuple), min_size=2, max_size=8, unique=True), st.integers(40, 150))
def test_different_parts_never_have_one_name(all_parts, longest):
    names = [unique_name(*parts, longest=longest) for parts in all_parts]
    assert len(set(names)) == len(names)
    assert all(len(name) <= longest for name in names)
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", name) for name in names)


@pytest.fixture
def names_of(make_spec):
    """The names of all Docker objects of a job."""

    def names(nodes=1, **changes):
        spec = make_spec(image="i", nodes=nodes, **changes)
        parts = specs_of_nodes(spec, "token")
        networks = {network_of(part) for part in parts} - {None}
        return [*map(container_name, parts), *volume_names(spec), *networks]

    return names


PAIRS = [
    ({"job_id": "gloo-w2-g0-env/n2-a"}, {"job_id": "gloo-w2-g0-env-n2/a"}),
    ({"job_id": "gloo-w2-g0-env/t2.6-a"}, {"job_id": "gloo-w2-g0-env-t2.6/a"}),
    ({"job_id": "c/a-1", "attempt": 2}, {"job_id": "c/a", "attempt": 12}),
    ({"job_id": "c/a", "attempt": 11}, {"job_id": "c/a-1", "attempt": 1}),
    ({"job_id": "c/a_b"}, {"job_id": "c/a-b"}),
    ({"job_id": "c/a@1of2"}, {"job_id": "c/a-1of2"}),
    ({"job_id": "c/\u00e4"}, {"job_id": "c/\u00f6"}),
    ({"job_id": "c/a-shared"}, {"job_id": "c/a"}),
    ({"job_id": "c/a-1-node1", "nodes": 1}, {"job_id": "c/a", "nodes": 2}),
    ({"job_id": "c/a", "run_id": "r-c"}, {"job_id": "c-c/a", "run_id": "r"}),
    ({"job_id": "c/a", "run_id": "r.c"}, {"job_id": "r/c.a", "run_id": "r"}),
    ({"job_id": f"c/{'a' * 300}"}, {"job_id": f"c/{'a' * 301}"}),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_two_jobs_share_no_name(names_of, one, other):
    assert not set(names_of(**one)) & set(names_of(**other))


@pytest.mark.parametrize("job_id", ["gloo-w2-g0-env/tiny", "c/a b", "c/\u00e4", "c/.-", f"c/{'long' * 99}", "c/\udc80"])
def test_names_are_legal_for_docker_and_as_host_names(names_of, job_id):
    for name in names_of(nodes=2, run_id="20260101T000000Z-abcdef", job_id=job_id)[:-1]:
        assert HOST_NAME.fullmatch(name), name
    assert HOST_NAME.fullmatch(node_name(999))


def test_names_say_which_job_and_which_node_they_are_of(make_spec):
    spec = make_spec(image="i", run_id="r", nodes=2)
    nodes = [container_name(part) for part in specs_of_nodes(spec, "token")]
    assert [name[: name.rindex("-")] for name in nodes] == [
        "allranks-gloo-w2-g0-env-tiny-1-node0-r", "allranks-gloo-w2-g0-env-tiny-1-node1-r",
    ]  # fmt: skip


NAMED = [("a/b", "a-b"), ("a/b:c", "a/b-c"), ("nvidia.com/gpu=0", "nvidia.com/gpu_0"), ("a b", "a_b"), ("a%2Fb", "a/b")]


@pytest.mark.parametrize("files", [image_lock, gpu_leases.lease_file, unhealthy_gpus.quarantine_file])
@pytest.mark.parametrize(("one", "other"), NAMED, ids=str)
def test_two_images_or_gpus_share_no_lock(files, one, other):
    assert files(one) != files(other)
    assert files(one).parent == files(other).parent


@pytest.mark.parametrize("gpu", ["GPU-a1b2c3d4-0000", "MIG-a1", "renderD128", "0"])
def test_files_of_a_gpu_have_its_id(gpu):
    assert gpu_leases.lease_file(gpu).name == f"gpu-{gpu}"
    assert unhealthy_gpus.quarantine_file(gpu).name == f"unhealthy-{gpu}"
