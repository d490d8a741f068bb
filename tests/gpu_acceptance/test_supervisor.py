"""What becomes of parts that end as they should not: each is played by a small script."""

import sys
import threading
import time

import pytest

from gpu_acceptance.parts import Part
from gpu_acceptance.supervisor import Supervisor

PROVED = '{"outcome": "proved", "text": "seen", "checks": 2, "figure": "1 s"}'


@pytest.fixture
def supervise(tmp_path):
    def make(script, *arguments, seconds=30.0, least=0.0, left=60.0):
        supervisor = Supervisor(
            work=tmp_path,
            machine=tmp_path / "machine.json",
            environment={},
            pretended=False,
            deadline=time.monotonic() + left,
            command=(sys.executable, "-c", f"{script}  # {' '.join(arguments)}"),
        )
        return supervisor, Part(name="part", home="nowhere:at_all", seconds=seconds, least=least)

    return make


def writing(output, then=""):
    return f"import pathlib, sys; pathlib.Path(sys.argv[2], 'verdict.json').write_text({output!r}); {then}"


def test_a_part_that_says_what_it_saw_is_proved(supervise):
    supervisor, part = supervise(writing(PROVED))
    verdict = supervisor.run(part)
    assert (verdict.outcome, verdict.text, verdict.checks) == ("proved", "seen", 2)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("pass", "FileNotFoundError"),
        ("import sys; print('last words'); sys.exit(3)", "last words"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit status -11"),
        (writing(PROVED, "sys.exit(1)"), "exit status 1"),
        (writing("{}"), "KeyError"),
        (writing("not json"), "JSONDecodeError"),
        (writing(PROVED.replace("2", "0")), "checked nothing"),
        (writing(PROVED.replace("seen", "")), "checked nothing"),
        (writing('{"outcome": "fine"}'), "TypeError"),
    ],
)
def test_a_part_that_breaks_down_or_claims_too_much_is_wrong(supervise, script, why):
    supervisor, part = supervise(script)
    verdict = supervisor.run(part)
    assert verdict.outcome == "wrong"
    assert why in verdict.text


ENDLESS = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ENDLESS}"


def test_a_part_that_does_not_end_is_ended_and_wrong(supervise, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor._GRACE", 0.2)
    supervisor, part = supervise(STUBBORN, seconds=0.5)
    verdict = supervisor.run(part)
    assert verdict.outcome == "wrong"
    assert "took more than" in verdict.text


def test_a_part_for_which_the_time_was_too_short_is_not_possible(supervise):
    supervisor, part = supervise(ENDLESS, left=0.5)
    verdict = supervisor.run(part)
    assert (verdict.outcome, "--minutes" in verdict.text) == ("not possible here", True)


def test_a_part_that_had_too_little_time_by_its_own_words_is_not_wrong(supervise):
    supervisor, part = supervise(writing('{"outcome": "time is up", "text": "no rank came"}'), left=10)
    verdict = supervisor.run(part)
    assert verdict.outcome == "not possible here"
    assert "no rank came" in verdict.text


def test_without_time_a_part_is_not_begun(supervise):
    supervisor, part = supervise(writing(PROVED), left=5, least=20)
    assert supervisor.run(part).outcome == "not possible here"
    assert not supervisor.folder(part).exists()


def test_a_part_that_cannot_be_started_does_not_end_the_others(supervise):
    supervisor, part = supervise(writing(PROVED))
    supervisor.folder(part).write_text("in the way")
    verdict = supervisor.run(part)
    assert verdict.outcome == "wrong"
    assert "could not be run" in verdict.text


def test_parts_that_are_stopped_are_ended_and_no_other_begins(supervise, tmp_path):
    begun = tmp_path / "begun"
    supervisor, part = supervise(f"import pathlib; pathlib.Path({str(begun)!r}).touch(); {ENDLESS}")
    found = []
    thread = threading.Thread(target=lambda: found.append(supervisor.run(part)))
    thread.start()
    while not begun.exists():
        time.sleep(0.01)
    supervisor.stop()
    thread.join(20)
    assert [verdict.text for verdict in found] == ["interrupted"]
    assert supervisor.run(Part(name="other", home="x:y", seconds=1, least=0)).text == "interrupted before it began"
