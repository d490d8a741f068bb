"""The entry point of every job, run by its path with ``python -I -S``, so that it imports no module of the suite.

With ``keep`` as the first argument, it runs as the first process of a container: :mod:`allranks.agent.container_init`.
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
