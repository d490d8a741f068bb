"""At import, the process leaves its session and group."""

import os
from contextlib import suppress

with suppress(OSError):
    os.setsid()
with suppress(OSError):
    os.setpgid(0, 0)
