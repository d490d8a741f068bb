"""At import, a handler is set that takes the statuses of all children."""

import os
import signal


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


signal.signal(signal.SIGCHLD, reap)
