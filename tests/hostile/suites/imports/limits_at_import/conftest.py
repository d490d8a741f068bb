"""At import, the process may write no byte into a file, nor open one more."""

import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
