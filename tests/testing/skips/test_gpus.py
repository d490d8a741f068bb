from types import SimpleNamespace

import pytest
import torch

from allranks.protocol.outcomes import SkipKind
from allranks.testing import skips as gpu_skips


@pytest.mark.parametrize(
    ("visible", "needed", "code"),
    [(0, 1, 74), (0, 4, 74), (1, 2, 77), (2, 3, 80), (3, 4, 81), (7, 8, 85), (8, 9, 85)],
)
def test_too_few_gpus_are_a_hardware_skip_with_torchs_code(skip_of, gpus, visible, needed, code):
    gpus(visible)
    skip = skip_of(gpu_skips.require_gpus(needed))
    assert (skip.code, skip.kind, skip.gpus_needed) == (code, SkipKind.HARDWARE, needed)


@pytest.mark.parametrize(("visible", "needed", "code"), [(0, 16, 74), (8, 9, 85), (8, 16, 85), (64, 72, 85)])
def test_the_skip_states_the_number_of_gpus(skip_of, gpus, visible, needed, code):
    gpus(visible)
    skip = skip_of(gpu_skips.require_gpus(needed))
    assert (skip.code, skip.gpus_needed) == (code, needed)
    if visible:
        assert skip.msg == f"fewer than {needed} GPUs are visible: {visible} of {needed}"


@pytest.mark.parametrize(("visible", "needed"), [(1, 1), (2, 2), (8, 3)])
def test_enough_gpus_are_no_skip(gpus, visible, needed):
    gpus(visible)
    gpu_skips.require_gpus(needed).check()


def test_the_reason_states_the_number_of_gpus(skip_of, gpus):
    gpus(1)
    assert skip_of(gpu_skips.require_gpus(4)).msg == "fewer than 4 GPUs are visible: 1 of 4"


def test_gpus_can_be_required_for_one_backend(gpus, cell, skip_of):
    gpus(0)
    requirement = gpu_skips.require_gpus(2, on="nccl")
    cell(BACKEND="gloo")
    requirement.check()
    cell(BACKEND="nccl")
    assert skip_of(requirement).code == 74


@pytest.mark.parametrize(("visible", "code"), [(0, None), (1, 77), (2, None)])
def test_a_test_can_need_gpus_or_none(gpus, skip_of, visible, code):
    gpus(visible)
    requirement = gpu_skips.require_gpus_or_none(2)
    if code is None:
        requirement.check()
    else:
        assert skip_of(requirement).code == code


@pytest.mark.parametrize(("visible", "code"), [(0, 74), (2, 80), (3, None)])
def test_each_rank_of_a_node_can_require_its_own_gpu(gpus, cell, skip_of, visible, code):
    gpus(visible)
    cell(WORLD_SIZE=6, LOCAL_WORLD_SIZE=3)
    if code is None:
        gpu_skips.require_gpu_per_rank.check()
    else:
        assert skip_of(gpu_skips.require_gpu_per_rank).code == code


@pytest.mark.parametrize(("visible", "needed", "code"), [(0, 2, 89), (1, 2, 77), (2, 2, None)])
def test_accelerators_are_counted_whatever_they_are(gpus, skip_of, visible, needed, code):
    gpus(visible)
    requirement = gpu_skips.require_accelerators(needed)
    if code is None:
        requirement.check()
    else:
        skip = skip_of(requirement)
        assert (skip.code, skip.kind) == (code, SkipKind.HARDWARE)


@pytest.mark.parametrize(("visible", "blind", "code"), [(1, set(), 77), (3, set(), None), (3, {(2, 0)}, 79)])
def test_every_pair_of_gpus_needs_peer_access(request, monkeypatch, visible, blind, code):
    gpus, skip_of = map(request.getfixturevalue, ("gpus", "skip_of"))
    gpus(visible)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) not in blind)
    if code is None:
        gpu_skips.require_peer_access.check()
    else:
        assert skip_of(gpu_skips.require_peer_access).code == code


def test_the_pair_without_peer_access_is_named(gpus, skip_of, monkeypatch):
    gpus(3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) != (2, 0))
    assert skip_of(gpu_skips.require_peer_access).msg.endswith("GPU 2 cannot access the memory of GPU 0")


def test_the_lowest_compute_capability_counts(gpus, skip_of, monkeypatch):
    gpus(2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(9, 0), (8, 6)][index])
    gpu_skips.require_compute_capability(8, 6).check()
    skip = skip_of(gpu_skips.require_compute_capability(9))
    assert skip.code == 86
    assert "8.6, below 9.0" in skip.msg


@pytest.fixture
def rocm(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setattr(torch.version, "hip", "6.2.41134-65d174c3e")
    properties = SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize(
    "requirement",
    [
        gpu_skips.skip_if_rocm,
        gpu_skips.skip_if_rocm_arch("gfx942", "gfx90a"),
        gpu_skips.skip_if_rocm_older(6, 3),
        gpu_skips.skip_if_rocm_older(7),
        gpu_skips.require_compute_capability(8),
    ],
)
def test_tests_that_do_not_apply_to_this_rocm_are_skipped(requirement, skip_of):
    skip = skip_of(requirement)
    assert (skip.code, skip.kind) == (78, SkipKind.ENVIRONMENT)


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize("requirement", [gpu_skips.skip_if_rocm_arch("gfx942"), gpu_skips.skip_if_rocm_older(6, 2)])
def test_another_rocm_is_not_skipped(requirement):
    requirement.check()


@pytest.mark.parametrize(
    "requirement", [gpu_skips.skip_if_rocm, gpu_skips.skip_if_rocm_arch("gfx90a"), gpu_skips.skip_if_rocm_older(6)]
)
def test_a_torch_without_rocm_is_not_skipped(requirement):
    requirement.check()


def test_forgotten_parentheses_are_an_error():
    with pytest.raises(TypeError, match="the number of GPUs must be an integer"):

        @gpu_skips.require_gpus
        def test_it(): ...
