"""The Python blocks of docs/testing-cases.md run on two ranks, after the imports that a reader would add."""

import re

import pytest
from blocks import blocks

BLOCKS = [block for block in blocks() if (block.page, block.kind) == ("docs/testing-cases.md", "python")]

IMPORTS = """\
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.rpc as rpc

from allranks.testing import *


"""


@pytest.mark.thorough
def test_the_blocks_pass_on_two_ranks(shell):
    for block in BLOCKS:
        (shell.folder / f"test_line_{block.line}.py").write_text(IMPORTS + block.text)
    output = shell("pytest -v --ranks 2 --ranks-timeout 60 -p no:cacheprovider")
    for block in BLOCKS:
        assert re.search(rf"^test_line_{block.line}\.py::\w+.* PASSED", output, re.MULTILINE), output
    assert re.search(r"^=+ \d+ passed in [^,]+=+$", output, re.MULTILINE), output
