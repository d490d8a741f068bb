"""Rank 1 writes files of results, for ranks that there are and ranks that there are not, in which all tests pass."""

import json

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}

SUITE = '<testsuites><testsuite name="pytest" tests="{count}" failures="0" errors="0">{tests}</testsuite></testsuites>'
TEST = '<testcase classname="x" name="{name}" time="0"><properties>{properties}</properties></testcase>'
PROPERTIES = '<property name="allranks.nodeid" value="{test}"/><property name="allranks.outcome" value="passed"/>'


def document():
    """All tests of this suite, passed."""
    prefix = f"suites/{reach.Path(__file__).parent.name}/"
    tests = [prefix + test for test in reach.TESTS]
    bodies = [TEST.format(name=test[-9:], properties=PROPERTIES.format(test=test)) for test in tests]
    return SUITE.format(count=len(tests), tests="".join(bodies)).encode()


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for name in reach.RESULT_NAMES:
            if name.endswith(".xml"):
                (folder / name).write_bytes(document())
            elif name.endswith(".jsonl"):
                (folder / name).write_bytes(reach.plausible())
            elif name.endswith(".json"):
                (folder / name).write_text(json.dumps({"schema": 2, "status": 0, "collected": [], "finished": 1e9}))
