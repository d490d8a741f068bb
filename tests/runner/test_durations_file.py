"""The file of durations, valid and unusable."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.runner.durations import DurationsError, keep_durations, parse, read_durations, render

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
DURATIONS = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.dictionaries(NAMES, st.floats(0, 1e6), min_size=1), min_size=1), max_size=3
)
ONE = {"rpc": {"gloo": {"t::a": 1.5}}}

FOREIGN = [
    ("<<<<<<< ours\n{}\n", "is not a file of durations (JSONDecodeError"),
    ("[]", "is not a file of durations"),
    ('{"name": "a package"}', "is not a file of durations (KeyError: 'schema')"),
    ('{"schema": 1, "seconds": {"rpc": 1}}', "is not a file of durations"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": "long"}}}}', "'long' is not a number of seconds"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": -1}}}}', "-1 is not a number of seconds"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": NaN}}}}', "nan is not a number of seconds"),
    ('{"schema": 2, "seconds": {}}', "is of schema 2, but this version of allranks reads schema 1"),
    ("[" * 100_000, "is not a file of durations"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder / ".allranks-durations.json"


@pytest.fixture
def messages():
    return []


@given(DURATIONS)
def test_written_durations_can_be_read(durations):
    assert parse(render(durations)) == durations


@pytest.mark.thorough
@given(DURATIONS, st.randoms())
def test_the_file_does_not_depend_on_the_order_of_measurements(durations, random):
    def shuffled(value):
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(item)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)

    assert render(shuffled(durations)) == render(durations)


def test_each_test_has_its_own_line_for_diffs():
    assert '    "t::a": 1.5\n' in render(ONE)
    assert json.loads(render(ONE))["schema"] == 1


def test_a_missing_file_is_empty_without_a_message(path, messages):
    assert read_durations(path, messages.append) == {}
    assert messages == []


def test_the_first_run_writes_only_the_file(path, messages):
    keep_durations(path, ONE, messages.append)
    assert read_durations(path, messages.append) == ONE
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert messages == []


def test_a_run_without_measurements_writes_no_file(path, messages):
    keep_durations(path, {"rpc": {"gloo": {}}}, messages.append)
    assert not path.exists()


def test_a_later_run_adds_its_measurements(path, messages):
    keep_durations(path, ONE, messages.append)
    keep_durations(path, {"rpc": {"nccl": {"t::a": 2.0}}}, messages.append)
    assert read_durations(path, messages.append) == {"rpc": {"gloo": {"t::a": 1.5}, "nccl": {"t::a": 2.0}}}


def test_a_run_that_changes_nothing_does_not_touch_the_file(path, messages):
    keep_durations(path, ONE, messages.append)
    before = path.stat()
    keep_durations(path, {"rpc": {"gloo": {"t::a": 1.6}}}, messages.append)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_concurrent_runs_lose_no_measurements(path, messages):
    news = [{"rpc": {"gloo": {f"t::{number}": 1.0}}} for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda new: keep_durations(path, new, messages.append), news))
    assert len(read_durations(path, messages.append)["rpc"]["gloo"]) == 20
    assert messages == []


@pytest.mark.parametrize(("text", "words"), FOREIGN)
def test_an_unusable_file_is_reported_and_ignored(path, messages, text, words):
    path.write_text(text)
    assert read_durations(path, messages.append) == {}
    [line] = messages
    assert words in line
    assert line.startswith(f"{path} is ignored: it ")
    assert "Remove the file to start a new one" in line


@pytest.mark.parametrize(("text", "words"), FOREIGN)
def test_a_file_of_another_format_is_never_overwritten(path, messages, text, words):
    path.write_text(text)
    keep_durations(path, ONE, messages.append)
    assert path.read_text() == text
    [line] = messages
    assert words in line
    assert line.startswith(f"{path} was not update")


def test_a_binary_file_is_ignored(path, messages):
    path.write_bytes(b"\xff\xfe\x00")
    assert read_durations(path, messages.append) == {}
    assert "cannot be read" in messages[0]


def test_a_folder_that_cannot_be_written_is_reported_and_not_an_error(tmp_path, messages):
    keep_durations(tmp_path / "gone" / "durations.json", ONE, messages.append)
    assert messages == [
        f"{tmp_path}/gone/durations.json was not updated with the durations of this run: No such file or directory."
    ]


def test_an_empty_file_is_valid():
    assert parse("\n") == {}
    with pytest.raises(DurationsError):
        parse("null")
