"""At collection, every plugin of the harness is unregistered."""


def pytest_collection_modifyitems(config):
    for plugin in list(config.pluginmanager.get_plugins()):
        if type(plugin).__module__.startswith("allranks") or getattr(plugin, "__name__", "").startswith("allranks"):
            config.pluginmanager.unregister(plugin)
