import ast
from pathlib import Path

import pytest
import torch.distributed as dist

from allranks.testing import register_unsupported, skip_unsupported, skips, unsupported_operations
from allranks.testing.skips import why_unsupported

SUITES = Path(__file__).parents[3] / "suites"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(skips, "_registered", {})


def test_the_table_combines_operations_for_all_devices_and_for_one():
    assert why_unsupported("tags", "nccl", "cuda") == "nccl has no tags"
    assert why_unsupported("barrier", "ucc", "cpu") == "ucc has no barrier on cpu"
    assert why_unsupported("barrier", "ucc", "cuda") is None
    assert unsupported_operations("UCC", "cpu") - unsupported_operations("ucc") == {"barrier"}


def test_a_backend_supports_nothing_on_a_device_that_torch_does_not_list_for_it():
    assert why_unsupported("all_reduce", "nccl", "cpu") == "nccl has no tensors on cpu"
    assert why_unsupported("all_reduce", "nccl", "cuda") is None


def test_an_unknown_backend_supports_everything():
    assert why_unsupported("all_reduce", "carrier", "cpu") is None
    assert unsupported_operations("carrier", "cpu") == frozenset()


def test_users_can_extend_the_table_for_their_backends():
    register_unsupported("Carrier", ["all_to_all"])
    register_unsupported("carrier", {"barrier", "gather"}, device="cuda")
    assert unsupported_operations("carrier") == {"all_to_all"}
    assert unsupported_operations("CARRIER", "cuda") == {"all_to_all", "barrier", "gather"}
    register_unsupported("gloo", ["gather"])
    assert "all_gather of unequal tensors" in unsupported_operations("gloo", "cpu")


def test_a_string_instead_of_a_list_of_operations_is_an_error():
    with pytest.raises(TypeError, match=r"\['gather'\]"):
        register_unsupported("carrier", "gather")


def test_a_registered_backend_supports_the_devices_that_it_declares(monkeypatch):
    monkeypatch.setitem(dist.Backend.backend_capability, "carrier", ["cpu"])
    assert why_unsupported("gather", "carrier", "cpu") is None
    assert why_unsupported("gather", "carrier", "cuda") == "carrier has no tensors on cuda"


@pytest.mark.parametrize(
    ("variables", "device", "why"),
    [
        ({"BACKEND": "gloo"}, None, None),
        ({"BACKEND": "nccl"}, None, "nccl has no tags"),
        ({"BACKEND": "nccl"}, "cpu", "nccl has no tensors on cpu"),
        ({"BACKEND": "carrier"}, None, "carrier has no tags on cpu"),
        ({"BACKEND": "carrier", "ALLRANKS_GPU_COUNT": 2}, None, None),
        ({"BACKEND": "carrier", "ALLRANKS_GPU_COUNT": 2}, "cpu", "carrier has no tags on cpu"),
    ],
)
def test_a_test_is_skipped_by_the_table_of_its_cell(cell, skip_of, variables, device, why):
    register_unsupported("carrier", ["tags"], device="cpu")
    cell(**variables)
    requirement = skip_unsupported("tags", device=device)
    if why is None:
        requirement.check()
    else:
        assert (skip_of(requirement).code, skip_of(requirement).msg) == (86, why)


def test_only_the_given_backends_lack_the_operation(cell):
    cell(BACKEND="nccl")
    skip_unsupported("tags", on=["mpi"]).check()


def test_the_suites_and_the_table_agree():
    declared = [
        (ast.literal_eval(node.args[0]), backend)
        for path in SUITES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "skip_unsupported" and node.keywords
        for backend in ast.literal_eval(node.keywords[0].value)
    ]
    assert len(declared) > 20
    in_table = {operation for backend in ("gloo", "nccl") for operation in unsupported_operations(backend)}
    differ = {(operation, backend) for operation, backend in declared if operation in in_table} - {
        (operation, backend) for backend in ("gloo", "nccl") for operation in unsupported_operations(backend)
    }
    assert differ == set()


def test_ranks_are_skipped_by_what_the_conftest_of_the_suite_registered(run_gang):
    registered = "from allranks.testing import register_unsupported\nregister_unsupported('gloo', ['flight'])\n"
    agent = run_gang(
        {
            "conftest.py": registered,
            "test_it.py": """
                import pytest

                @pytest.mark.skip_unsupported("flight")
                def test_it(): raise AssertionError
            """,
        }
    )
    assert agent.outcomes("test_it") == ("skipped", "skipped")
    assert "gloo has no flight" in agent.cases(0)["test_it"].text
