"""``allranks clean``: what was removed is named."""

import argparse


def test_clean_names_what_it_removed(allranks, monkeypatch):
    engines = [argparse.Namespace(reap=lambda: ["process 1"]), argparse.Namespace(reap=lambda: ["volume x"])]
    monkeypatch.setattr("allranks.schedule.host.engines", lambda: engines)
    assert allranks("clean") == (0, "removed process 1\nremoved volume x\n", "")


def test_clean_says_when_there_is_nothing(allranks, monkeypatch):
    monkeypatch.setattr("allranks.schedule.host.engines", list)
    code, out, _ = allranks("clean")
    assert code == 0
    assert out.startswith("nothing to remove")
