"""At import, ends of children are ignored, and a thread takes their statuses."""

import signal

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
