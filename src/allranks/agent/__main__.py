"""The command of every job, run by path under ``python -I -S``: it imports nothing of a suite.

With ``keep`` as its first argument it also keeps a job's files: see :mod:`allranks.agent.container_init`.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[2]))

from allranks.agent import container_init
from allranks.agent.supervisor import job

if sys.argv[1:2] == ["keep"]:
    container_init.main(sys.argv[2:])
job.main()
