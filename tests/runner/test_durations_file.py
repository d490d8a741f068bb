"""The file of durations: what it looks like, and what becomes of one that cannot be used."""

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
    ("<<<<<<< ours\n{}\n", "holds no durations of allranks (JSONDecodeError"),
    ("[]", "holds no durations of allranks"),
    ('{"name": "a package"}', "holds no durations of allranks (KeyError: 'schema')"),
    ('{"schema": 1, "seconds": {"rpc": 1}}', "holds no durations of allranks"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": "long"}}}}', "'long' is no number of seconds"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": -1}}}}', "-1 is no number of seconds"),
    ('{"schema": 1, "seconds": {"rpc": {"gloo": {"t::a": NaN}}}}', "nan is no number of seconds"),
    ('{"schema": 2, "seconds": {}}', "is of schema 2, but this version of allranks reads schema 1"),
    ("[" * 100_000, "holds no durations of allranks"),
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
def said():
    return []


@given(DURATIONS)
def test_what_is_written_is_read_again(durations):
    assert parse(render(durations)) == durations


@given(DURATIONS, st.randoms())
def test_the_file_says_the_same_in_whatever_order_it_was_measured(durations, random):
    def shuffled(value):
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(each)) for key, each in value.items()]
        random.shuffle(items)
        return dict(items)

    assert render(shuffled(durations)) == render(durations)


def test_each_test_is_a_line_so_that_versions_can_be_compared():
    assert '    "t::a": 1.5\n' in render(ONE)
    assert json.loads(render(ONE))["schema"] == 1


def test_nothing_is_known_where_there_is_no_file_yet_and_nothing_is_said(path, said):
    assert read_durations(path, said.append) == {}
    assert said == []


def test_the_first_run_makes_the_file_and_leaves_nothing_beside_it(path, said):
    keep_durations(path, ONE, said.append)
    assert read_durations(path, said.append) == ONE
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert said == []


def test_a_run_that_measured_nothing_makes_no_file(path, said):
    keep_durations(path, {"rpc": {"gloo": {}}}, said.append)
    assert not path.exists()


def test_a_later_run_adds_what_it_measured(path, said):
    keep_durations(path, ONE, said.append)
    keep_durations(path, {"rpc": {"nccl": {"t::a": 2.0}}}, said.append)
    assert read_durations(path, said.append) == {"rpc": {"gloo": {"t::a": 1.5}, "nccl": {"t::a": 2.0}}}


def test_a_run_that_changes_nothing_does_not_touch_the_file(path, said):
    keep_durations(path, ONE, said.append)
    before = path.stat()
    keep_durations(path, {"rpc": {"gloo": {"t::a": 1.6}}}, said.append)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_runs_that_end_at_once_lose_nothing(path, said):
    news = [{"rpc": {"gloo": {f"t::{number}": 1.0}}} for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda new: keep_durations(path, new, said.append), news))
    assert len(read_durations(path, said.append)["rpc"]["gloo"]) == 20
    assert said == []


@pytest.mark.parametrize(("text", "words"), FOREIGN)
def test_a_file_that_cannot_be_used_is_said_and_left_out(path, said, text, words):
    path.write_text(text)
    assert read_durations(path, said.append) == {}
    [line] = said
    assert words in line
    assert line.startswith(f"{path} is left out: it ")
    assert "remove it to begin anew" in line


@pytest.mark.parametrize(("text", "words"), FOREIGN)
def test_a_file_that_is_not_ours_is_never_overwritten(path, said, text, words):
    path.write_text(text)
    keep_durations(path, ONE, said.append)
    assert path.read_text() == text
    [line] = said
    assert words in line
    assert line.startswith(f"{path} was not renewed")


def test_a_file_of_bytes_that_are_no_text_is_left_out(path, said):
    path.write_bytes(b"\xff\xfe\x00")
    assert read_durations(path, said.append) == {}
    assert "cannot be read" in said[0]


def test_a_folder_that_cannot_be_written_is_said_and_ends_nothing(tmp_path, said):
    keep_durations(tmp_path / "gone" / "durations.json", ONE, said.append)
    assert said == [f"{tmp_path}/gone/durations.json was not renewed by what this run took: No such file or directory."]


def test_a_file_that_says_nothing_is_one_to_begin_with():
    assert parse("\n") == {}
    with pytest.raises(DurationsError):
        parse("null")
