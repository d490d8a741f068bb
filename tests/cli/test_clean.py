"""``allranks clean`` without ``--images``."""

import argparse
import os

import pytest

from allranks.engines.base import Leftovers
from allranks.errors import EngineError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "allranks"


def engine(removed: list[str], unknown: list[str]) -> argparse.Namespace:
    return argparse.Namespace(clean_up=lambda: Leftovers(removed, unknown), close=lambda: None)


def test_clean_names_what_it_removed(allranks, monkeypatch):
    monkeypatch.setattr(
        "allranks.engines.registry.engines_here", lambda: [engine(["process 1"], []), engine(["volume x"], [])]
    )
    assert allranks("clean") == (0, "removed process 1\nremoved volume x\n", "")


def test_clean_removes_old_cache_entries(allranks, monkeypatch, cache):
    monkeypatch.setattr("allranks.engines.registry.engines_here", list)
    old = cache / "environments" / "torch-2.13.0-abc"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))
    assert allranks("clean") == (0, f"removed {old}, not used for 30 days\n", "")
    assert not old.exists()


def test_clean_reports_that_there_is_nothing_to_remove(allranks, monkeypatch):
    monkeypatch.setattr("allranks.engines.registry.engines_here", list)
    code, out, _ = allranks("clean")
    assert code == 0
    assert out.startswith("nothing to remove")


def test_clean_names_what_it_did_not_remove_and_why(allranks, monkeypatch):
    there = [engine(["process 1"], ["process 2"]), engine([], ["volume x"])]
    monkeypatch.setattr("allranks.engines.registry.engines_here", lambda: there)
    code, out, _ = allranks("clean")
    assert code == 0
    removed, left = out.splitlines()
    assert removed == "removed process 1"
    assert left.startswith(
        "not removed: process 2, volume x. Their runs belong to another host or to another namespace"
    )


def test_an_engine_error_does_not_prevent_the_clean_up_of_others(allranks, monkeypatch):
    def fail():
        msg = "Could not be listed."
        raise EngineError(msg, remedy="Look.")

    broken = argparse.Namespace(clean_up=fail, close=lambda: None)
    there = [engine(["process 1"], []), broken, engine(["volume x"], ["volume y"])]
    monkeypatch.setattr("allranks.engines.registry.engines_here", lambda: there)
    code, out, err = allranks("clean")
    assert code == 4
    assert out.startswith("removed process 1\nremoved volume x\nnot removed: volume y.")
    assert "Could not be listed. Look." in " ".join(err.split())
