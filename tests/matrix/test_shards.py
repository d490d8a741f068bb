"""Suites with shards: their jobs, their names, and their selection."""

import json
import re

import pytest

from allranks.cli.plan import render_json, render_table
from allranks.errors import MatrixError, UsageError
from allranks.matrix.expand import expand
from allranks.matrix.jobs import plan
from allranks.matrix.select import select

PATH = 'path = "suites/collectives"'
CELL = "gloo-w2-g0-env"


@pytest.fixture
def load_shards(load_text, document):
    """Loads the matrix with a number of shards of its suite ``collectives``, and a suite ``whole``."""

    def load(shards):
        text = document.replace(PATH, f"{PATH}\nshards = {shards}")
        return load_text(f"{text}\n[suites.whole]\npath = 'suites'\n")

    return load


def ids(matrix, *suites):
    return [job.id for job in plan(matrix, select(expand(matrix), CELL), suites or None)]


def test_a_split_suite_has_one_job_for_each_shard_in_each_cell(load_shards):
    matrix = load_shards(3)
    assert ids(matrix) == [
        f"{CELL}/collectives@1of3",
        f"{CELL}/collectives@2of3",
        f"{CELL}/collectives@3of3",
        f"{CELL}/whole",
    ]
    assert len(plan(matrix, expand(matrix).cells)) == 4 * 4


def test_one_shard_is_the_whole_suite_under_its_own_name(load_shards):
    matrix = load_shards(1)
    assert ids(matrix) == [f"{CELL}/collectives", f"{CELL}/whole"]
    assert {job.shard for job in plan(matrix, expand(matrix).cells)} == {None}


def test_the_suites_name_selects_all_its_shards(load_shards):
    assert ids(load_shards(2), "collectives") == [f"{CELL}/collectives@1of2", f"{CELL}/collectives@2of2"]


def test_a_shards_name_selects_it_alone(load_shards):
    assert ids(load_shards(4), "collectives@3of4") == [f"{CELL}/collectives@3of4"]


def test_shards_and_suites_are_selected_together_each_once(load_shards):
    matrix = load_shards(2)
    assert ids(matrix, "whole", "collectives@2of2") == [f"{CELL}/collectives@2of2", f"{CELL}/whole"]
    assert ids(matrix, "collectives@2of2", "collectives") == ids(matrix, "collectives")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("collectives@5of4", "There is no shard 'collectives@5of4'.\ncollectives has 4 shards, collectives@1of4 to"),
        ("collectives@1of3", "There is no shard 'collectives@1of3'."),
        ("collectives@", "There is no shard 'collectives@'."),
        ("whole@1of2", "whole is not split: set shards in [suites.whole]"),
        ("colectives@1of4", "There is no suite 'colectives@1of4'.\nDid you mean 'collectives'?"),
    ],
)
def test_a_shard_that_is_not_there_is_a_usage_error_that_says_what_is(load_shards, name, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        ids(load_shards(4), name)


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "'2'", "true", "1001"])
def test_shards_are_a_whole_number_from_1(load_shards, wrong):
    with pytest.raises(MatrixError, match=r"^matrix.toml:\d+: suites.collectives.shards: .*\n.*(from|at least) 1"):
        load_shards(wrong)


def test_the_table_shows_all_shards_as_one_and_some_by_their_names(load_shards):
    matrix = load_shards(4)
    cells = select(expand(matrix), CELL)
    assert render_table(matrix, cells).splitlines()[1].endswith("  collectives@1of4…4of4, whole")
    some = render_table(matrix, cells, ["collectives@2of4", "collectives@3of4"]).splitlines()
    assert some[1].endswith("  collectives@2of4, collectives@3of4")
    assert some[-1] == "1 cell, 2 jobs"


def test_the_plan_for_machines_has_each_suite_once_and_a_job_for_each_shard(load_shards):
    expansion = expand(load_shards(2))
    [cell] = json.loads(render_json(expansion, select(expansion, CELL)))["cells"]
    assert cell["suites"] == ["collectives", "whole"]
    assert cell["jobs"] == [f"{CELL}/collectives@1of2", f"{CELL}/collectives@2of2", f"{CELL}/whole"]


def test_a_table_of_durations_is_refused_with_what_to_do_instead(load_text, document):
    with pytest.raises(MatrixError, match=r"durations: there is no such key\.\n.*--durations"):
        load_text(document + "[durations]\nfile = 'durations.json'\n")
