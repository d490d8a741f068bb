"""At import, every descriptor but the standard ones is closed."""

import os

os.closerange(3, 4096)
