"""``python -m allranks.harness``: the command of every job."""

from allranks.harness.agent import main

main()
