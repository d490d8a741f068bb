"""``[[runners]]``: parsing, and the check against the cells."""

import pytest

from allranks.errors import ExitCode, MatrixError, UsageError
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.model import RunnerRule
from allranks.matrix.runners import UBUNTU, cores_of, minutes_of, runner_for

RULES = """
[[runners]]
when = "gpu_count == 0"
labels = ["ubuntu-24.04"]
[[runners]]
when = "gpu_count == 1"
labels = ["self-hosted", "gpu-1"]
gpus = 1
cores = 12
engine = "docker"
[[runners]]
labels = ["big machines"]
gpus = 8
"""


@pytest.fixture
def rules(load_text, document):
    return load_text(document + RULES)


def test_every_key_of_a_runner_is_read(rules):
    cpu, small, big = rules.runners
    assert (cpu.labels, cpu.hosted, cpu.gpus, cpu.line) == (("ubuntu-24.04",), True, 0, 29)
    assert (small.labels, small.hosted, small.gpus) == (("self-hosted", "gpu-1"), False, 1)
    assert (small.cores, small.engine) == (12, "docker")
    assert (big.labels, big.when, big.gpus) == (("big machines",), None, 8)


def test_the_first_rule_that_holds_takes_a_cell(rules):
    cells = {cell.id: runner_for(rules, cell) for cell in expand(rules).cells}
    assert cells == {
        "gloo-w1-g0-env": rules.runners[0],
        "gloo-w2-g0-env": rules.runners[0],
        "nccl-w1-g1-env": rules.runners[1],
        "nccl-w2-g2-env": rules.runners[2],
    }


@pytest.mark.parametrize(
    ("labels", "hosted"),
    [
        ('["ubuntu-latest"]', True),
        ('["Ubuntu-22.04"]', True),
        ('["ubuntu-24.04-arm"]', True),
        ('["self-hosted", "ubuntu-22.04"]', False),
        ('["linux", "gpu"]', False),
        ('["ubuntu-of-ours"]', False),
        ('["ubuntu-latest"]\nhosted = false', False),
        ('["cheap-machines"]\nhosted = true', True),
    ],
)
def test_whose_machines_they_are_is_said_or_seen_by_their_labels(load_text, document, labels, hosted):
    text = document + f'\n[[runners]]\nwhen = "gpu_count == 0"\nlabels = {labels}\n'
    [rule] = load_text(text).runners
    assert rule.hosted is hosted


@pytest.mark.parametrize(
    ("rule", "what", "remedy"),
    [
        ("gpus = 1", "runners: the key labels is missing", 'labels = ["self-hosted"'),
        ("labels = []", "runners.labels: the list is empty", "self-hosted"),
        ('labels = "gpu"', "runners.labels: 'gpu' is not a list", 'labels = ["self-hosted"'),
        ('labels = ["gpu", "GPU"]', "runners.labels: 'GPU' occurs twice", "once"),
        ('labels = ["a,b"]', "runners.labels: 'a,b' is not a valid label", "without commas"),
        ('labels = ["a\\nb"]', "runners.labels: 'a\\\\nb' is not a valid label", "one line"),
        ('labels = [" a"]', "runners.labels: ' a' is not a valid label", "settings"),
        (f'labels = ["{"x" * 257}"]', "runners.labels: 'xxx", "256 characters"),
        ('labels = ["a"]\ngroup = "g"', "runners.group: there is no such key", "labels"),
        ('labels = ["a"]\nminutes = 5', "runners.minutes: there is no such key", "limits.job"),
        ('labels = ["a"]\nlable = 1', "runners.lable: there is no such key", "'labels'?"),
        ('labels = ["a"]\ngpus = -1', "runners.gpus: -1 is out of range", "from 0"),
        ('labels = ["a"]\ncores = 0', "runners.cores: 0 is out of range", "from 1"),
        ('labels = ["a"]\nhosted = "no"', "runners.hosted: 'no' is not true or false", "hosted = true"),
        ('labels = ["self-hosted"]\nhosted = true', "runners.hosted: a machine with the label", "Remove hosted"),
        ('labels = ["ubuntu-latest"]\ngpus = 2', "runners.gpus: GitHub's standard machines have", "hosted = false"),
        ('labels = ["a"]\nwhen = "gpus > 0"', "runners.when: the condition has 'gpus'", "'gpu_count'"),
    ],
)
def test_a_wrong_runner_is_an_error_with_its_line_and_key(load_text, document, rule, what, remedy):
    with pytest.raises(MatrixError) as caught:
        load_text(f"{document}\n[[runners]]\n{rule}\n")
    assert caught.value.what.startswith(("matrix.toml:29", "matrix.toml:30", "matrix.toml:31"))
    assert what.replace("\\\\", "\\") in caught.value.what
    assert remedy in caught.value.remedy
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("rule", "cell", "remedy"),
    [
        ('labels = ["ubuntu-latest"]', "nccl-w1-g1-env", "gpu_count == 0"),
        ('labels = ["gpu"]', "nccl-w1-g1-env", "gpus = 1"),
        ('labels = ["gpu"]\ngpus = 1', "nccl-w2-g2-env", "gpus = 2"),
    ],
)
def test_a_rule_that_sends_a_cell_to_machines_without_its_gpus_is_an_error(load_text, document, rule, cell, remedy):
    with pytest.raises(MatrixError, match=r"^matrix.toml:29: runners: the cell ") as caught:
        load_text(f"{document}\n[[runners]]\n{rule}\n")
    assert cell in caught.value.what
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("label", ["gpu-t4", "ubuntu-24.04-gpu-t4"])
def test_a_larger_runner_of_github_has_gpus_and_six_hours(load_text, document, label):
    [rule] = load_text(f'{document}\n[[runners]]\nlabels = ["{label}"]\nhosted = true\ngpus = 2\n').runners
    assert (rule.gpus, rule.hosted, minutes_of(rule), cores_of(rule)) == (2, True, 360, 8)


def test_a_cell_that_an_earlier_rule_takes_is_no_business_of_a_later_one(load_text, document):
    takes_all = (
        '[[runners]]\nwhen = "gpu_count > 0"\nlabels = ["gpu"]\ngpus = 2\n[[runners]]\nlabels = ["ubuntu-latest"]'
    )
    assert len(load_text(f"{document}\n{takes_all}\n").runners) == 2


def test_without_rules_cells_without_gpus_go_to_github_and_others_need_a_rule(load_text, document):
    matrix = load_text(document)
    gloo, *_, nccl = expand(matrix).cells
    assert runner_for(matrix, gloo) is UBUNTU
    with pytest.raises(UsageError, match="No CI machine takes the cell nccl-w2-g2-env") as caught:
        runner_for(matrix, nccl)
    assert "gpus = 2" in caught.value.remedy


def test_a_cell_that_no_rule_takes_is_an_error_only_when_somebody_asks(load_text, document):
    matrix = load_text(document + '[[runners]]\nwhen = "gpu_count == 2"\nlabels = ["gpu"]\ngpus = 2\n')
    with pytest.raises(UsageError, match="takes the cell gloo-w1-g0-env") as caught:
        runner_for(matrix, expand(matrix).cells[0])
    assert caught.value.why == "No [[runners]] rule matches it."


def test_the_rule_that_an_error_suggests_is_right(load_text, repository, document):
    with pytest.raises(UsageError) as caught:
        runner_for(load_text(document), load(repository).cells[-1])
    suggested = caught.value.remedy.partition("[[runners]]")[2].replace("  ", "\n")
    assert load_text(f"{document}\n[[runners]]{suggested}\n").runners[0].gpus == 2


@pytest.mark.parametrize(
    ("rule", "cores", "minutes"),
    [
        (UBUNTU, 4, 360),
        (RunnerRule(labels=("gpu",), gpus=4), 32, 7200),
        (RunnerRule(labels=("cpu",)), 4, 7200),
        (RunnerRule(labels=("cpu",), cores=3), 3, 7200),
    ],
)
def test_what_a_rule_does_not_say_is_taken_from_the_kind_of_machine(rule, cores, minutes):
    assert (cores_of(rule), minutes_of(rule)) == (cores, minutes)
