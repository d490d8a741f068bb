"""Gloo devices: the network interface or address that gloo process groups listen on."""

from torch.distributed import ProcessGroupGloo

LOOPBACK = "127.0.0.1"


def gloo_device(
    interface: str | None = None, *, hostname: str | None = None, lazy_init: bool = False
) -> ProcessGroupGloo.Device:
    """Create a device for the options of a gloo process group.

    Args:
        interface: The name of a network interface of this host, such as ``"lo"`` or ``"eth0"``.
        hostname: A name or an address of this host. The default, if ``interface`` is None too, is the loopback address.
        lazy_init: Whether two ranks connect when they first communicate, instead of when the group is created.

    Returns:
        The device, for ``ProcessGroupGloo._Options._devices``.

    Raises:
        ValueError: Both an interface and a host name were given.
        RuntimeError: This host has no such interface, or the name does not resolve to one of its addresses.
    """
    if interface is not None and hostname is not None:
        msg = f"pass either the interface {interface!r} or the host name {hostname!r}: a gloo device has one address"
        raise ValueError(msg)
    # Older versions of torch do not have this argument.
    lazily = {"lazy_init": True} if lazy_init else {}
    if interface is not None:
        return ProcessGroupGloo.create_device(interface=interface, **lazily)
    return ProcessGroupGloo.create_device(hostname=hostname or LOOPBACK, **lazily)
