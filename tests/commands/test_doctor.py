"""``allranks doctor``: findings as they are printed; what is found, tests/test_doctor.py has."""

from allranks.engine.kind import Finding


def test_the_doctors_findings_are_printed_and_a_problem_is_exit_code_4(allranks, monkeypatch):
    found = [Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.host_checks.examine", lambda *_: [Finding("GPUs", "none"), *found])
    code, out, _ = allranks("doctor")
    assert code == 4
    assert out == "ok       GPUs: none\nPROBLEM  disk: full\n         -> Make room.\n1 problem(s)\n"
    found.clear()
    assert allranks("doctor")[:2] == (0, "ok       GPUs: none\nno problem was found\n")
