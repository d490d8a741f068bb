"""``allranks doctor``: findings as they are printed; what is found, tests/test_doctor.py has."""

import json

from allranks.engine.kind import Finding


def test_the_doctors_findings_are_printed_and_a_problem_is_exit_code_4(allranks, monkeypatch):
    found = [Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.host_checks.examine", lambda *_: [Finding("GPUs", "none"), *found])
    code, out, _ = allranks("doctor")
    assert code == 4
    assert out == "ok       GPUs: none\nPROBLEM  disk: full\n         -> Make room.\n1 problem(s)\n"
    found.clear()
    assert allranks("doctor")[:2] == (0, "ok       GPUs: none\nno problem was found\n")


def test_findings_are_one_object_for_programs(allranks, monkeypatch):
    found = [Finding("GPUs", "none"), Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.host_checks.examine", lambda *_: found)
    code, out, err = allranks("doctor", "--json")
    assert (code, err) == (4, "")
    assert json.loads(out) == {
        "schema": 1,
        "problems": 1,
        "findings": [
            {"subject": "GPUs", "state": "none", "remedy": None},
            {"subject": "disk", "state": "full", "remedy": "Make room."},
        ],
    }


def test_a_quiet_doctor_names_problems(allranks, monkeypatch):
    found = [Finding("GPUs", "none"), Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.host_checks.examine", lambda *_: found)
    assert allranks("doctor", "-q")[:2] == (4, "PROBLEM  disk: full\n         -> Make room.\n1 problem(s)\n")
