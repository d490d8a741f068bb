"""suites/behaviours.toml names every behaviour that torch tests, and only tests that exist."""

import json

import pytest
from behaviour_map import (
    MADE_FOR,
    Behaviour,
    behaviours,
    installed_torch,
    main,
    outcomes,
    suite_tests,
    torch_tests,
    troubles,
)
from long_lists import quick

NOT_IN_TORCH = {
    # A function within another test of that class.
    "RpcTest.func",
    # The list of behaviours that the suites were written from has it; torch has the one without `remote` alone.
    "TensorPipeAgentDistAutogradTest.backward_no_grad_on_tensor_remote_sparse",
}
"""Keys of the map that are no tests of torch."""

KNOWN = behaviours()
SUITES_OF_THE_MAP = sorted({test.split("/")[0] for item in KNOWN for test in item.tests})


@pytest.mark.skipif(installed_torch() != MADE_FOR, reason=f"the map has the tests of torch {MADE_FOR}")
def test_map_has_every_test_of_torch():
    classes = {test.name.split(".")[0] for test in KNOWN}
    assert {test.name for test in KNOWN} - NOT_IN_TORCH == torch_tests(sorted(classes))


def test_map_has_all_classes_of_the_list():
    assert sorted({test.name.split(".")[0] for test in KNOWN}) == [
        "CudaDistAutogradTest",
        "CudaRpcTest",
        "DistAutogradTest",
        "FaultyAgentDistAutogradTest",
        "RpcTest",
        "TensorPipeAgentCudaRpcTest",
        "TensorPipeAgentDistAutogradTest",
        "TensorPipeAgentRpcTest",
        "TensorPipeCudaDistAutogradTest",
    ]


@pytest.mark.parametrize("suite", quick(1, SUITES_OF_THE_MAP))
def test_every_test_of_the_map_exists(suite):
    named = {test for item in KNOWN for test in item.tests if test.startswith(f"{suite}/")}
    assert named - suite_tests(suite) == set()


def test_reasons_are_sentences():
    short = [test for test in KNOWN if not test.tests and len(test.not_here.split()) < 5]
    assert short == []


def test_no_behaviour_names_a_test_twice():
    assert [test.name for test in KNOWN if len(set(test.tests)) < len(test.tests)] == []


@pytest.mark.parametrize("value", ['"a test"', "[]", "{ not_here = 1 }", '{ not_here = "why", tests = ["a"] }'])
def test_entry_of_another_form_is_refused(tmp_path, value):
    path = tmp_path / "map.toml"
    path.write_text(f"[RpcTest]\nadd = {value}\n")
    with pytest.raises(ValueError, match=r"RpcTest\.add: neither a list"):
        behaviours(path)


def run_of(folder, *tests):
    (folder / "report.json").write_text(json.dumps({"suites": [{"tests": tests}]}))
    return outcomes(folder / "report.json")


def ran(name, verdict, **more):
    return {"nodeid": f"suites/{name}", "verdict": verdict, **more}


def test_mapped_test_that_did_not_run_is_told(tmp_path):
    found = run_of(tmp_path, ran("rpc/test_a.py::test_x[1]", "passed"))
    known = [Behaviour(name="RpcTest.x", tests=("rpc/test_a.py::test_x", "rpc/test_a.py::test_y"))]
    assert troubles(known, found) == ["rpc/test_a.py::test_y: did not run"]


@pytest.mark.parametrize("verdict", ["failure", "skipped"])
def test_one_parameter_that_did_not_pass_is_told(tmp_path, verdict):
    found = run_of(tmp_path, ran("rpc/test_a.py::test_x[1]", "passed"), ran("rpc/test_a.py::test_x[2]", verdict))
    known = [Behaviour(name="RpcTest.x", tests=("rpc/test_a.py::test_x",))]
    assert troubles(known, found) == [f"rpc/test_a.py::test_x: {', '.join(sorted(['passed', verdict]))}"]


def test_want_of_gpus_is_counted_and_no_trouble(tmp_path, capsys):
    names = {test for item in KNOWN for test in item.tests}
    run_of(tmp_path, *(ran(name, "skipped", skip_kind="hardware") for name in names))
    assert main([str(tmp_path)]) == 0
    assert f"{len(KNOWN)} behaviours: 0 shown" in capsys.readouterr().out
