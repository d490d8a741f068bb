import pytest
import torch
import torch.distributed as dist

from allranks.protocol.outcomes import SkipKind
from allranks.testing import skips as backend_skips


def test_a_backend_that_torch_lacks_is_skipped(monkeypatch, skip_of):
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    backend_skips.require_backend_available("gloo").check()
    backend_skips.require_gloo.check()
    skip = skip_of(backend_skips.require_backend_available("ucc"))
    assert (skip.code, skip.kind) == (72, SkipKind.ENVIRONMENT)
    assert "ucc" in skip.msg


def test_the_cells_backend_must_be_one_of_the_given(cell, skip_of):
    cell(BACKEND="gloo")
    backend_skips.require_backend_in("nccl", "gloo").check()
    skip = skip_of(backend_skips.require_backend_in("nccl", "mpi"))
    assert skip.code == 72
    assert "nccl and mpi" in skip.msg
    assert "gloo" in skip.msg


@pytest.mark.parametrize("available", [True, False])
def test_a_torch_without_nccl_is_skipped(monkeypatch, skip_of, available):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: available)
    if available:
        backend_skips.require_nccl.check()
    else:
        assert skip_of(backend_skips.require_nccl).code == 76


def test_an_operation_that_the_backend_lacks_is_skipped_by_name(cell, skip_of):
    requirement = backend_skips.skip_unsupported("gather of ghosts", on=["gloo"])
    cell(BACKEND="nccl")
    requirement.check()
    cell(BACKEND="gloo")
    skip = skip_of(requirement)
    assert (skip.code, skip.msg) == (86, "gloo has no gather of ghosts")


@pytest.mark.parametrize("name", ["ucc", "mpi"])
def test_ucc_and_mpi_can_be_required(monkeypatch, skip_of, name):
    requirement = getattr(backend_skips, f"require_{name}")
    monkeypatch.setattr(dist, "is_backend_available", lambda asked: asked == name)
    requirement.check()
    monkeypatch.setattr(dist, "is_backend_available", lambda asked: asked != name)
    assert skip_of(requirement).code == 72


def test_one_of_several_backends_is_enough(monkeypatch, skip_of):
    requirement = backend_skips.require_backend_available("nccl", "xccl")
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "xccl")
    requirement.check()
    monkeypatch.setattr(dist, "is_backend_available", lambda _name: False)
    assert "no nccl and no xccl" in skip_of(requirement).msg


@pytest.fixture
def nccl(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        (backend_skips.require_nccl_version(2, 27), True),
        (backend_skips.require_nccl_version(2, 27, 5), True),
        (backend_skips.require_nccl_version(2, 27, 6), False),
        (backend_skips.require_nccl_version(3), False),
        (backend_skips.skip_nccl_versions((2, 26), (2, 27, 5)), True),
        (backend_skips.skip_nccl_versions((2, 26), (2, 27, 6)), False),
        (backend_skips.skip_nccl_versions((2, 27, 5), (2, 28)), False),
        (backend_skips.skip_nccl_versions((2, 27, 6), (2, 28)), True),
    ],
)
def test_a_test_can_need_some_versions_of_nccl(requirement, is_met, skip_of):
    if is_met:
        requirement.check()
    else:
        skip = skip_of(requirement)
        assert (skip.code, skip.kind) == (86, SkipKind.ENVIRONMENT)
        assert "NCCL 2.27.5" in skip.msg


@pytest.mark.parametrize(
    "requirement", [backend_skips.require_nccl_version(2), backend_skips.skip_nccl_versions((2, 1), (2, 2))]
)
def test_without_nccl_its_version_is_not_checked(monkeypatch, skip_of, requirement):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert skip_of(requirement).code == 76


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (backend_skips.require_nccl_version, TypeError, "such as 2, 27"),
        (lambda: backend_skips.require_nccl_version("2.27"), TypeError, "such as 2, 27"),
        (lambda: backend_skips.skip_nccl_versions((2, 5), (2, 4)), ValueError, "older version first"),
        (lambda: backend_skips.skip_nccl_versions("2.4", "2.5"), TypeError, "such as 2, 27"),
        (backend_skips.require_backend_in, TypeError, "names of backends"),
        (lambda: backend_skips.require_backend_in(["nccl"]), TypeError, "names of backends"),
        (lambda: backend_skips.require_backend_available(len), TypeError, "names of backends"),
        (lambda: backend_skips.skip_unsupported("gather", on="gloo"), TypeError, r"on=\['gloo'\]"),
    ],
)
def test_wrong_arguments_are_an_error_that_shows_a_correct_one(make, error, words):
    with pytest.raises(error, match=words):
        make()
