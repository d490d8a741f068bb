"""Detecting the style of existing tests from their source."""

import pytest

from allranks.cli.existing_tests import STYLES, find_tests

SUM = "    dist.all_reduce(tensor)\n"
OWN_GROUP = "import torch.distributed as dist\ndef test_a():\n    dist.init_process_group('gloo')\n" + SUM
BASE = (
    "from torch.testing._internal.common_distributed import MultiProcessTestCase as Base\nclass Ours(Base):\n    pass\n"
)

STYLES_OF = {
    "fixtures of allranks": ("def test_a(process_group, rank):\n    pass\n", "distributed"),
    "a fixture and a group of its own": (
        "import torch.distributed as dist\ndef test_a(process_group):\n    dist.init_process_group()\n",
        "distributed",
    ),
    "a group of nobody": ("import torch.distributed as dist\ndef test_a():\n" + SUM, "distributed"),
    "a class of allranks": ("from allranks.testing import RankTestCase\n", "distributed"),
    "its own group": (OWN_GROUP, "torchrun"),
    "its own group, by the name": (
        "from torch.distributed import init_process_group\ndef test_a():\n    init_process_group()\n",
        "torchrun",
    ),
    "a sentence that names torchrun": ('"""Run it: torchrun --nproc-per-node 2 -m pytest"""\n' + OWN_GROUP, "torchrun"),
    "a reason that names torchrun": (
        "import pytest\nno = pytest.mark.skipif(True, reason='start it by torchrun')\n" + OWN_GROUP,
        "torchrun",
    ),
    "a class of torch": (BASE, "torch-classes"),
    "mp.spawn": ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)\n" + OWN_GROUP, "spawn"),
    "spawn": ("from torch.multiprocessing import spawn\n", "spawn"),
    "processes": ("import multiprocessing\nimport torch.distributed\nmultiprocessing.Process()\n", "spawn"),
    "a context": ("from torch import multiprocessing\nmultiprocessing.get_context('spawn').Process()\n", "spawn"),
    "torchrun": ("import subprocess\ndef test_a():\n    subprocess.run(['torchrun', 'x.py'])\n", "spawn"),
    "torch's module": ("run([sys.executable, '-m', 'torch.distributed.run', 'x.py'])\n", "spawn"),
    "a command": ("run(f'torchrun --nproc-per-node {n} x.py')\n", "spawn"),
    "a class of torch that also spawns": (BASE + "import torch.multiprocessing as mp\nmp.spawn(f)\n", "spawn"),
    "accelerate": ("from accelerate import debug_launcher\ndebug_launcher(f)\n", "spawn"),
    "Lightning": ("def test_a():\n    Fabric(strategy='ddp_fork')\n", "spawn"),
    "DeepSpeed": ("from unit.common import DistributedTest as D\nclass TestA(D):\n    world_size = 2\n", "spawn"),
    "a marker": ("import pytest\n@pytest.mark.world_size(2)\ndef test_a():\n    pass\n", "distributed"),
    "a decorator": ("from common import world_size\n@world_size(2)\nclass TestA:\n    pass\n", "distributed"),
    "nothing distributed": ("import torch\ndef test_a():\n    assert torch.ones(1)\n", ""),
    "processes without torch": ("import multiprocessing\nmultiprocessing.Process(target=f)\n", ""),
    "a parameter that is no fixture": (
        "import pytest\n@pytest.mark.parametrize('rank, x', [(1, 2)])\ndef test_a(rank, x):\n    pass\n",
        "",
    ),
    "no Python": ("import torch.distributed as dist\ndef (", ""),
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


@pytest.mark.parametrize(("source", "style"), STYLES_OF.values(), ids=list(STYLES_OF))
def test_a_style_is_detected_from_the_source(tmp_path, write, source, style):
    write({"tests/test_it.py": source})
    assert find_tests(tmp_path).suites == ({style: ("tests",)} if style else {})


def test_every_style_is_tested():
    assert {style for _, style in STYLES_OF.values()} == {*STYLES, ""}


def test_a_folder_of_one_style_is_one_path_and_other_files_are_listed(tmp_path, write):
    write(
        {
            "tests/one/a/test_a.py": OWN_GROUP,
            "tests/one/b_test.py": OWN_GROUP,
            "tests/two/test_b.py": BASE,
            "tests/two/test_c.py": "",
            "tests/two/helper.py": OWN_GROUP,
            "test_d.py": OWN_GROUP,
        }
    )
    assert find_tests(tmp_path).suites == {
        "torchrun": ("test_d.py", "tests/one"),
        "torch-classes": ("tests/two/test_b.py",),
    }


@pytest.mark.parametrize("folder", ["build", ".tox/x", "venv", "results/latest", "environment"])
def test_build_and_environment_folders_are_ignored(tmp_path, write, folder):
    write({f"{folder}/test_a.py": OWN_GROUP, "environment/pyvenv.cfg": ""})
    assert find_tests(tmp_path).suites == {}


def test_conftests_and_imported_modules_count_too(tmp_path, write):
    uses = "import torch.distributed as dist\ndef test_a(group):\n    dist.barrier()\n"
    write(
        {
            "tests/conftest.py": OWN_GROUP,
            "tests/test_a.py": uses,
            "tests/test_b.py": "def test_b(process_group):\n    pass\n",
            "other/bases.py": BASE,
            "other/test_c.py": "from .bases import Ours\nimport torch.distributed\nclass TestIt(Ours):\n    pass\n",
            "deep/test_d.py": "from pkg.spawning import start\nimport torch.distributed\n",
            "src/pkg/spawning/__init__.py": "import torch.multiprocessing as mp\nmp.spawn(f)\n",
        }
    )
    found = find_tests(tmp_path)
    assert found.suites == {
        "distributed": ("tests/test_b.py",),
        "torchrun": ("tests/test_a.py",),
        "torch-classes": ("other",),
        "spawn": ("deep",),
    }
    assert found.need_expecttest


def test_deepspeeds_class_is_recognized_by_its_module(tmp_path, write):
    derived = "from common import DistributedTest\nclass TestA(DistributedTest):\n    pass\n"
    write(
        {
            "tests/unit/a/b/test_a.py": derived.replace("common", "unit.common"),
            "tests/unit/common.py": "import torch.multiprocessing as mp\nclass DistributedTest:\n    pool = mp.Pool\n",
            "ours/test_b.py": derived,
            "ours/common.py": "from allranks.testing import stores\nclass DistributedTest:\n    pass\n",
        }
    )
    assert find_tests(tmp_path).suites == {"distributed": ("ours",), "spawn": ("tests",)}


def test_unrecognized_files_about_ranks_are_listed_and_others_are_counted(tmp_path, write):
    odd = {
        "test_broken.py": "import torch.distributed\ndef (",
        "test_variable.py": "import os\ndef test_a():\n    assert os.environ['WORLD_SIZE']\n",
        "test_run_if.py": "@RunIf(min_cuda_gpus=2, standalone=True)\ndef test_a():\n    pass\n",
    }
    files = {**odd, "test_own.py": OWN_GROUP, "test_spawn.py": STYLES_OF["mp.spawn"][0], "test_plain.py": ""}
    write({f"tree/{name}": text for name, text in files.items()})
    found = find_tests(tmp_path / "tree")
    assert found.unrecognized == tuple(sorted(odd))
    assert (dict(found.counts), found.has_more) == ({"torchrun": 1, "spawn": 1, "": 4}, False)


def test_a_tree_with_too_many_files_is_reported(tmp_path, write, monkeypatch):
    monkeypatch.setattr("allranks.cli.existing_tests._MOST_FILES", 2)
    write({f"tree/test_{number}.py": OWN_GROUP for number in range(3)})
    found = find_tests(tmp_path / "tree")
    assert (found.counts, found.has_more) == ({"torchrun": 2}, True)


def test_a_fixture_of_the_repository_is_not_that_of_allranks(tmp_path, write):
    write({"conftest.py": "def rank():\n    return 0\n", "test_a.py": "def test_a(rank):\n    pass\n"})
    assert find_tests(tmp_path).suites == {}


def test_only_torchs_classes_need_expecttest(tmp_path, write):
    write({"test_a.py": OWN_GROUP})
    assert not find_tests(tmp_path).need_expecttest
    write({"test_b.py": BASE})
    assert find_tests(tmp_path).need_expecttest
