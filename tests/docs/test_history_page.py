"""docs/history.md: its commands run one after the other, and its steps name existing files and options."""

import json
from pathlib import Path

import pytest
import yaml
from blocks import ROOT, blocks

PAGE = "docs/history.md"
RANK = """<testsuites><testsuite name="pytest"><properties><property name="allranks.rank" value="0"/>
<property name="allranks.world_size" value="1"/></properties>
<testcase classname="tests.test_x" name="test_b" time="0.1"><properties>
<property name="allranks.nodeid" value="tests/test_x.py::test_b"/></properties></testcase></testsuite></testsuites>"""
CELLS = {
    "gloo-w2-g0-env": {"backend": "gloo", "world_size": 2, "torch": "2.13.0"},
    "gloo-w4-g0-env": {"backend": "gloo", "world_size": 4, "torch": "2.14.1"},
}


def write_run(folder: Path) -> None:
    jobs = [{"id": f"{cell}/tests", "cell": cell, "suite": "tests"} for cell in CELLS]
    for cell in CELLS:
        attempt = folder / "cells" / cell / "tests" / "attempt-1"
        attempt.mkdir(parents=True)
        size = CELLS[cell]["world_size"]
        record = {
            "schema": 2,
            "cell": cell,
            "suite": "tests",
            "world_size": size,
            "run_id": folder.name,
            "started": 1.0,
        }
        (attempt / "job.json").write_text(json.dumps(record))
        for rank in range(size):
            text = RANK.replace('rank" value="0"', f'rank" value="{rank}"').replace(
                'size" value="1"', f'size" value="{size}"'
            )
            (attempt / f"rank-{rank}.xml").write_text(text)
    (folder / "run.json").write_text(json.dumps({"schema": 2, "run_id": folder.name, "cells": CELLS, "jobs": jobs}))


def page_blocks(kind):
    return [block for block in blocks() if (block.page, block.kind) == (PAGE, kind)]


@pytest.mark.thorough
def test_its_commands_run_one_after_the_other(shell):
    for name in ("gathered", "results/20261120T101500Z-3fa2c1", "results/latest", "main", "mine"):
        write_run(shell.folder / name)
    for name in ("main", "mine"):
        shell(f"allranks report {name}")
    (shell.folder / "matrix.toml").write_text(
        '[matrix]\nbackend = ["gloo"]\nworld_size = [2]\n[suites.tests]\npath = "."\n[images.cpu]\ntorch = "2.13.0"\n'
        "[history]\n"
    )
    commands = [command for block in page_blocks("console") for command in block.commands]
    assert len(commands) > 6
    for command in commands:
        shell(command)


def test_its_steps_keep_the_file_that_the_merge_names():
    [block] = page_blocks("yaml")
    restore, merge, save = yaml.safe_load(block.text)
    assert restore["with"]["path"] == save["with"]["path"]
    assert restore["with"]["key"] == save["with"]["key"]
    assert merge["run"].endswith(f"--history {save['with']['path']}")
    uses = (ROOT / ".github" / "workflows" / "dist.yml").read_text()
    assert all(f"{step['uses'].partition('@')[0]}@" in uses for step in (restore, save))
