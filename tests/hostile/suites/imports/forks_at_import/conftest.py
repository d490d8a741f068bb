"""At import, the process forks, and both go on."""

import os

os.fork()
