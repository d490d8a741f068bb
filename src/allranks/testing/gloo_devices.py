"""Devices of gloo: the network interface or address that its process groups listen on."""

from torch.distributed import ProcessGroupGloo

LOOPBACK = "127.0.0.1"


def gloo_device(
    interface: str | None = None, *, hostname: str | None = None, lazy_init: bool = False
) -> ProcessGroupGloo.Device:
    """A device for the options of a gloo process group.

    Args:
        interface: The name of a network interface of this host, such as ``"lo"`` or ``"eth0"``.
        hostname: A name or an address of this host; without it and without an interface, the loopback address.
        lazy_init: Connect two ranks when they first talk, not all of them when the group is made.

    Raises:
        ValueError: Both an interface and a host name are given.
        RuntimeError: This host has no such interface, or the name leads to no address of it.
    """
    if interface is not None and hostname is not None:
        msg = f"a gloo device has one address: give the interface {interface!r} or the host name {hostname!r}, not both"
        raise ValueError(msg)
    # Only where it is wanted: a torch that has no such argument still makes all other devices.
    lazily = {"lazy_init": True} if lazy_init else {}
    if interface is not None:
        return ProcessGroupGloo.create_device(interface=interface, **lazily)
    return ProcessGroupGloo.create_device(hostname=hostname or LOOPBACK, **lazily)
