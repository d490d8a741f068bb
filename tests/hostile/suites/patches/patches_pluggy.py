"""Rank 1 unregisters every plugin, and makes hooks call nobody."""

import pluggy

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank, request):
    if rank == 1:
        manager = request.config.pluginmanager
        for plugin in list(manager.get_plugins()):
            manager.unregister(plugin)
        pluggy.HookCaller.__call__ = lambda *_, **__: None


def test_next(rank):
    assert rank == 0
