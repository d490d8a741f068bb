"""The command of every job, run by its path under ``python -I -S``: no module of a suite can get into this process.

With ``keep`` as its first argument it keeps a job's files besides: see :mod:`allranks.harness.keeper`.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[2]))

from allranks.harness import agent, keeper

if sys.argv[1:2] == ["keep"]:
    keeper.main(sys.argv[2:])
agent.main()
