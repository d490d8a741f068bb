"""The blocks of docs/testing-cases.md: each is run, with the names around it that a reader brings along."""

import ast
import re

import pytest
from blocks import Block, blocks

PAGE = "docs/testing-cases.md"
FRAGMENTS = [each for each in blocks() if each.page == PAGE and each.kind == "python" and not each.why_not]

IMPORTS = """\
import os
import sys
import threading
import unittest
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

from allranks.testing import *
"""

READERS = {
    "run_subtests": """\
def step(name, *, foreach, lr=0.1, steps=1):
    assert name == "adam"
""",
    "start_peers": """\
def start_peers(port):
    options = {"world_size": 2, "is_master": False, "port": port}
    threading.Thread(target=create_tcp_store, kwargs=options).start()
""",
    "verify_ddp_error_logged": """\
class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


model, batch = None, torch.ones(1, 2)


@pytest.fixture(autouse=True)
def trained(process_group):
    global model
    model = torch.nn.parallel.DistributedDataParallel(Half())
    model(batch).sum().backward()
""",
    "captured_output": """\
batch = None


def model(batch):
    os.write(2, b"find_unused_parameters")
""",
    "DynamoDistributed": "import torch._dynamo\n",
    "test_late": """\
def work():
    return torch.ones(1)
""",
}
"""What a block takes for granted, by a word in it."""


def as_tests(block: Block) -> str:
    """The block as a file of tests: statements between its functions and classes become a test."""
    body = ast.parse(block.text).body
    lines = block.text.splitlines()
    kept, loose = [], []
    for node in body:
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        (kept if is_definition else loose).append(text)
    if loose:
        statements = "\n".join(f"    {line}" for text in loose for line in text.splitlines())
        kept.append(f"def test_statements(process_group, rank, world_size):\n{statements}")
    around = [text for word, text in READERS.items() if word in block.text]
    return "\n\n\n".join([IMPORTS, *around, *kept]) + "\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fragments_of_so_many_ranks(ranks, shell):
    blocks_ = [each for each in FRAGMENTS if ("start_peers" in each.text) == (ranks == 1)]
    for block in blocks_:
        (shell.folder / f"test_of_line_{block.line}.py").write_text(as_tests(block))
    told = shell(f"pytest -v --ranks {ranks} --ranks-timeout 60 -p no:cacheprovider")
    assert all(re.search(rf"^test_of_line_{block.line}\.py::\w+.* PASSED", told, re.MULTILINE) for block in blocks_)
    assert re.search(r"^=+ \d+ passed in [^,]+=+$", told, re.MULTILINE), told
