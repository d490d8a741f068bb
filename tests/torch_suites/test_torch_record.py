"""Recordings of torch's own runner, and the record that is made of them."""

import json

import pytest
from outcomes import Outcome, Recorded, outcome, read_recording
from record import main
from suite_files import UnknownSuiteError, read_selection
from torch_record import NoRecordError, Record, installed_torch, path_of, read_record, record_of, write_record

PASSED, FAILED = Outcome("passed"), Outcome("failed", "RuntimeError: lost")


def seen(*outcomes):
    return [Recorded("T::test_x", outcome, 1.0, "") for outcome in outcomes]


def recording(folder, name, *lines):
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(test, kind, reason=""):
    return {"test": test, "outcome": kind, "reason": reason, "seconds": 1.5}


def test_a_record_that_is_written_is_read_as_it_was(tmp_path):
    record = Record(
        torch="9.9",
        suites={"torch-rpc": {"T::test_x": PASSED, "T::test_a": Outcome("skipped", "no {'nccl'}")}},
        flaky={"torch-rpc": {"T::test_x": (PASSED, FAILED)}},
    )
    write_record(record, tmp_path)
    assert read_record("9.9", tmp_path) == record


def test_a_record_has_a_line_for_each_test_in_order(tmp_path):
    path = write_record(Record(torch="9.9", suites={"torch-rpc": {"T::b": PASSED, "T::a": PASSED}}), tmp_path)
    tests = [line.strip() for line in path.read_text().splitlines() if "::" in line]
    assert tests == ['"T::a": ["passed", ""],', '"T::b": ["passed", ""]']


def test_of_several_recordings_the_last_one_counts():
    record = record_of([("torch-rpc", seen(FAILED)), ("torch-rpc", seen(PASSED))], Record(torch="9.9"))
    assert record.suites["torch-rpc"]["T::test_x"] == PASSED


def test_outcomes_that_differ_between_recordings_are_kept_as_flaky():
    record = record_of([("torch-rpc", seen(FAILED, PASSED)), ("torch-rpc", seen(PASSED))], Record(torch="9.9"))
    assert record.flaky == {"torch-rpc": {"T::test_x": (PASSED, FAILED)}}
    assert record.seen("torch-rpc", "T::test_x") == (PASSED, FAILED)


def test_failures_with_different_words_are_not_flaky():
    other = Outcome("failed", "RuntimeError: lost elsewhere")
    record = record_of([("torch-rpc", seen(FAILED, other))], Record(torch="9.9"))
    assert record.flaky == {"torch-rpc": {}}
    assert record.seen("torch-rpc", "T::test_x") == (other,)


def test_tests_that_are_not_recorded_anew_stay_on_record():
    base = Record(torch="9.9", suites={"torch-c10d": {"T::old": PASSED}, "torch-rpc": {"T::old": PASSED}})
    record = record_of([("torch-rpc", seen(PASSED))], base)
    assert record.suites == {"torch-c10d": {"T::old": PASSED}, "torch-rpc": {"T::old": PASSED, "T::test_x": PASSED}}


def test_what_is_on_record_still_tells_that_a_test_is_flaky():
    base = Record(torch="9.9", suites={"torch-rpc": {"T::test_x": FAILED}})
    record = record_of([("torch-rpc", seen(PASSED))], base)
    assert record.seen("torch-rpc", "T::test_x") == (PASSED, FAILED)
    assert record_of([("torch-rpc", seen(PASSED))], record) == record


def test_a_line_that_is_not_whole_is_left_out(tmp_path):
    path = recording(tmp_path, "torch-rpc.jsonl", line("T::a", "passed"))
    path.write_text(path.read_text() + '{"test": "T::b", "outc')
    assert [item.test for item in read_recording(path)] == ["T::a"]


def test_the_script_makes_a_record_of_recordings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("record.write_record", lambda record: write_record(record, tmp_path))
    monkeypatch.setattr("record.read_record", lambda torch: read_record(torch, tmp_path))
    named = recording(tmp_path, "torch-rpc.jsonl", line("T::a", "passed"), line("T::a", "failed", "E\nmore"))
    other = recording(tmp_path, "other.jsonl", line("T::b", "skipped", "why"))
    assert main([str(named), f"torch-c10d={other}"]) == 0
    record = read_record(installed_torch(), tmp_path)
    assert record.suites == {
        "torch-c10d": {"T::b": Outcome("skipped", "why")},
        "torch-rpc": {"T::a": Outcome("failed", "E")},
    }
    assert "flaky: T::a: failed: E; passed" in capsys.readouterr().out


def test_the_script_asks_for_the_suite_of_a_recording_without_a_known_name(tmp_path):
    with pytest.raises(SystemExit, match="say which"):
        main([str(recording(tmp_path, "other.jsonl"))])


def test_the_script_runs_no_suite_that_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match=r"no suite rpc: name some of .*torch-rpc"):
        main(["--run", str(tmp_path / "new"), "torch-c10d", "rpc"])
    assert not (tmp_path / "new").exists()


def test_a_version_without_a_record_is_an_error_that_says_what_to_do(tmp_path):
    write_record(Record(torch="9.9"), tmp_path)
    with pytest.raises(NoRecordError, match=r"no record of torch 9\.8 \(there: 9\.9\).*--run"):
        read_record("9.8", tmp_path)


def test_the_installed_torch_has_a_record():
    assert path_of(installed_torch()).exists()


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ('File "/home/me/.venv/lib/torch/x.py", line 3', 'File "x.py", line 3'),
        ("cannot open /tmp/tmpabc123/store", "cannot open PATH"),
        ("connection to [127.0.0.1]:4711 lost", "connection to HOST:PORT lost"),
        ("connect to localhost:29500 failed", "connect to HOST:PORT failed"),
        ("<Work object at 0x7f00aa>", "<Work object at ADDRESS>"),
        ("process 31337 and pid=4711, of process 1", "process N and pid=N, of process 1"),
        ("https://github.com/pytorch/pytorch/issues/162676", "https://github.com/pytorch/pytorch/issues/162676"),
        ("one of {'nccl', 'gloo'}", "one of {'gloo', 'nccl'}"),
        ("timed out after 953.2350296974182 seconds", "timed out after N seconds"),
        ("two\n  lines", "two lines"),
        ("long " * 100, ("long " * 100)[:160]),
    ],
)
def test_a_reason_has_nothing_of_the_machine(message, kept):
    assert outcome("skipped", message).reason == kept


def test_a_failure_is_told_by_the_exception_that_ended_it():
    message = "Process 1 exited with error code 10:\nTraceback (most recent call last):\n  at x\nValueError: no\n"
    assert outcome("failed", message) == Outcome("failed", "ValueError: no")


def test_suites_and_tests_are_chosen_by_name():
    chosen = read_selection(["torch-rpc::T::a", "torch-rpc::T::b", "torch-c10d"])
    assert chosen == {"torch-rpc": ("T::a", "T::b"), "torch-c10d": ()}


def test_a_suite_that_is_not_there_is_an_error_that_names_those_that_are():
    with pytest.raises(UnknownSuiteError, match=r"no suite rpc: name one of .*torch-rpc"):
        read_selection(["rpc"])
