"""At import, files are made that nobody may read."""

import os

os.umask(0o777)
