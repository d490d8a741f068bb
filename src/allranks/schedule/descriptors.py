"""Room for the descriptors of many jobs: each takes half a dozen, and 1,024 are for a host of few cores."""

import resource

ENOUGH = 65_536
"""For some ten thousand jobs at a time; far below what programs choke on that go through all that they may have."""


def make_room_for_descriptors(enough: int = ENOUGH) -> None:
    """Raise this process's limit of open descriptors, and that of its children, as far as it may (setrlimit(2)).

    Args:
        enough: It need not be higher than this.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
