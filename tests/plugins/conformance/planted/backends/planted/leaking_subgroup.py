"""A sub-group works on the connections of the default group, over all of its ranks."""

from . import Delegate, register


class LeakingSubgroup(Delegate):
    world = None

    def connect(self, store, rank, size, timeout):
        if LeakingSubgroup.world is None:
            LeakingSubgroup.world = super().connect(store, rank, size, timeout)
        return LeakingSubgroup.world


register(LeakingSubgroup)
