"""`aisfs refresh`."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from aisfs.app.watching.asking import ALIVE, ask
from aisfs.errors import AisfsError, ConfigError, MountError, NotFound
from aisfs.fuse.mountpoint import our_mount

REFRESH = "user.aisfs.refresh"


def refresh(mountpoint: Path, paths: Sequence[Path]) -> int:
    """Make a mount forget what it knows of names, in all of it or below some paths.

    Args:
        mountpoint: The mount.
        paths: Absolute, or relative to it. What a file stands for is asked with all of its directory.

    Returns:
        How many names the kernel is made to look up again.

    Raises:
        MountError: there is no mount of aisfs, its daemon does not answer, or this user may not.
        ConfigError: a path lies outside.
        NotFound: there is nothing at a path, in the cluster either.
        AisfsError: the daemon could not do it; what it shows is as before.
    """
    mount = our_mount(mountpoint)
    places = [_place(mount, mountpoint, path) for path in paths] or [mount]
    try:
        ask(mount, ALIVE)  # what follows may take long, since it waits for the cluster
        return sum(_refresh_at(mount, place) for place in places)
    except OSError as error:
        raise _explained(mountpoint, error) from error


def _place(mount: Path, typed: Path, path: Path) -> Path:
    """Return where a path is in the mount, without touching it."""
    outside = ConfigError(f"{path} is not in the mount {typed}; a relative PATH begins there")
    for root in (mount, Path(os.path.abspath(typed))):
        place = Path(os.path.normpath(root / path))
        if place.is_relative_to(root):
            return mount / place.relative_to(root)
    raise outside


def _refresh_at(mount: Path, place: Path) -> int:
    """Refresh a path; if there is nothing, refresh the nearest directory above and look again."""
    above = place
    while True:
        try:
            names = _tell(above)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or above == mount:
                raise
            above = above.parent
            continue
        if above != place:
            try:
                ask(place, ALIVE, None)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    raise NotFound(
                        f"{place}: no such file or directory, in the source either"
                    ) from None
                if error.errno != errno.ENODATA:
                    raise
        return names


def _tell(place: Path) -> int:
    told = json.loads(ask(place, REFRESH, None))
    if "failed" in told:
        raise AisfsError(f"{place} is not refreshed: {told['failed']}")
    return int(told["names"])


def _explained(mountpoint: Path, error: OSError) -> MountError:
    if error.errno == errno.ENODATA:
        return MountError(
            f"{mountpoint}: its daemon is of an older aisfs; mount again to refresh it"
        )
    if error.errno == errno.EPERM:
        return MountError(f"{mountpoint}: only the user who mounted it, and root, may refresh it")
    return MountError(f"{mountpoint}: {error.strerror}")
