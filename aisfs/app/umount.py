"""`aisfs umount`."""

from pathlib import Path

from aisfs.fuse.mounting.mountpoint import our_mount, unmount


def umount(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount a mount of aisfs; `lazy` detaches it even when it is busy.

    Raises:
        MountError: it is no mount of aisfs, or busy.
    """
    unmount(our_mount(mountpoint), lazy=lazy)
