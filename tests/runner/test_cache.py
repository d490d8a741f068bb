from pathlib import Path

from allranks.engines.base import FileCopy
from allranks.runner.earlier_runs import cache_files, keep_cache


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_first_job_has_no_cache(tmp_path):
    assert list(cache_files(tmp_path / "none", tmp_path)) == []


def test_the_next_job_gets_the_cache_of_the_last_one(tmp_path):
    write(tmp_path / "results/pytest-cache/v/cache/lastfailed", "{}")
    keep_cache(tmp_path / "results", tmp_path / "cache")
    [copy] = cache_files(tmp_path / "cache", tmp_path)
    assert copy == FileCopy(source=tmp_path / "cache", target=Path("pytest-cache/v"), root=tmp_path)
    assert (tmp_path / "cache/cache/lastfailed").read_text() == "{}"


def test_the_cache_is_moved_out_of_a_jobs_results(tmp_path):
    write(tmp_path / "results/pytest-cache/v/cache/lastfailed", "{}")
    write(tmp_path / "results/pytest-cache/README.md", "about the cache")
    keep_cache(tmp_path / "results", tmp_path / "cache")
    assert list((tmp_path / "results").iterdir()) == []
    assert not (tmp_path / "cache/README.md").exists()


def test_a_later_job_replaces_cached_values(tmp_path):
    write(tmp_path / "cache/cache/lastfailed", "old")
    write(tmp_path / "results/pytest-cache/v/cache/lastfailed", "new")
    keep_cache(tmp_path / "results", tmp_path / "cache")
    assert (tmp_path / "cache/cache/lastfailed").read_text() == "new"


def test_a_job_without_a_cache_does_not_change_it(tmp_path):
    write(tmp_path / "cache/cache/lastfailed", "old")
    keep_cache(tmp_path / "results", tmp_path / "cache")
    assert (tmp_path / "cache/cache/lastfailed").read_text() == "old"


def test_symlinks_in_a_jobs_cache_are_not_followed(tmp_path):
    write(tmp_path / "secret", "secret")
    (tmp_path / "results/pytest-cache/v").mkdir(parents=True)
    (tmp_path / "results/pytest-cache/v/link").symlink_to(tmp_path / "secret")
    keep_cache(tmp_path / "results", tmp_path / "cache")
    assert not (tmp_path / "cache/link").exists()
