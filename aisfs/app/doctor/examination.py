"""All checks, in the order in which they are shown."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import trio

from aisfs.app.doctor.check import Check, ok, wrong
from aisfs.app.doctor.cluster import cluster_checks
from aisfs.app.doctor.direct import direct_checks
from aisfs.app.doctor.disk import disk_checks
from aisfs.app.doctor.fuse import fuse_checks
from aisfs.app.doctor.machine import machine_checks
from aisfs.app.doctor.mounts import mount_checks
from aisfs.app.watching.status import read_counters
from aisfs.core.names.sources import DirectorySource, Everything, Source, absolute, parse_sources
from aisfs.errors import ConfigError, DaemonSilent, MountError
from aisfs.fuse.mountpoint import our_mount
from aisfs.mount.plan import existing
from aisfs.settings import CacheSettings, ClusterSettings, Settings, WriteSettings
from aisfs.stores.registry import as_served, direct_store

_OF_MOUNT = ("endpoint", "cache_dir")
"""Settings that a mount tells."""

SettingsT = TypeVar("SettingsT", bound=Settings)


async def examine(subjects: list[str], given: Mapping[str, object]) -> list[Check]:
    """Check this machine, and the sources or the mount that `subjects` name.

    Args:
        subjects: One mountpoint of aisfs, or SOURCEs; none for the machine and the endpoint.
        given: Options by the names of their settings.
    """
    checks: list[Check] = []
    source: Source = Everything()
    if len(subjects) == 1 and _is_mount(subjects[0]):
        told = _ask_mount(subjects[0], checks)
        given = {**given, **{name: told[name] for name in _OF_MOUNT if told.get(name)}}
        source = _mounted(told)
    elif subjects:
        source = _parse(subjects, given, checks)
    cache = _load(CacheSettings, given, checks)
    checks += await trio.to_thread.run_sync(_local, cache, _load(WriteSettings, given, checks))
    checks += mount_checks()
    cluster = _load(ClusterSettings, given, checks)
    if cluster is not None:
        checks += [check async for check in _store_checks(cluster, source)]
    return checks


async def _store_checks(cluster: ClusterSettings, source: Source) -> AsyncIterator[Check]:
    try:
        served = as_served(source, cluster)
    except ConfigError as error:
        yield wrong("source", str(error), "write it as the message says")
        return
    store = direct_store(served)
    found = direct_checks(cluster, served, store) if store else cluster_checks(cluster, source)
    async for check in found:
        yield check


def _local(cache: CacheSettings | None, writing: WriteSettings | None) -> list[Check]:
    found = list(fuse_checks())
    if cache is not None:
        found += machine_checks(cache)
    if cache is not None and writing is not None:
        found += disk_checks(cache, writing)
    return found


def _load(
    kind: type[SettingsT], given: Mapping[str, object], checks: list[Check]
) -> SettingsT | None:
    try:
        return kind.load({name: v for name, v in given.items() if name in kind.model_fields})
    except ConfigError as error:
        problem = wrong("settings", str(error), "mend this option, variable or file")
        checks += [problem] if problem not in checks else []  # a file is that of all settings
        return None


def _parse(subjects: list[str], given: Mapping[str, object], checks: list[Check]) -> Source:
    try:
        source = parse_sources(subjects, is_directory=os.path.isdir, exists=existing(given))
        source = absolute(source)
    except ConfigError as error:
        checks.append(wrong("source", str(error), "write it as for aisfs mount: ais://BUCKET"))
        return Everything()
    if isinstance(source, DirectorySource):
        checks.append(_directory(source.path))
    return source


def _directory(path: Path) -> Check:
    if not path.is_dir():
        cure = "a bucket is written ais://BUCKET; a mountpoint must be mounted"
        return wrong("source", f"{path}: no such directory", cure)
    if not os.access(path, os.R_OK | os.X_OK):
        return wrong("source", f"{path}: permission denied", f"as its owner: chmod u+rx {path}")
    return ok("source", f"the directory {path} can be read")


def _is_mount(subject: str) -> bool:
    if "://" in subject:
        return False
    try:
        our_mount(Path(subject))
    except MountError:
        return False
    return True


def _ask_mount(subject: str, checks: list[Check]) -> Mapping[str, str]:
    """Ask a mount for its source, its endpoint and its cache directory."""
    try:
        counters = read_counters(Path(subject))
    except DaemonSilent as error:
        cure = f"is it stopped (T in ps)? If not: aisfs umount --lazy {subject}"
        checks.append(wrong("mount", str(error), cure))
        return {}
    except MountError:  # which the checks of all mounts explain
        return {}
    told = counters.labels("aisfs_mount")
    checks.append(ok("mount", f"{subject} shows {told.get('source', '')}"))
    return told


def _mounted(told: Mapping[str, str]) -> Source:
    """Return what a mount shows, if it needs no AIStore; such a store is checked, too."""
    words = told.get("source", "").split(" ")
    if not told.get("endpoint") and all("://" in word for word in words):
        with suppress(ConfigError):  # as messages call it, not as it was typed
            return parse_sources(words, is_directory=os.path.isdir)
    return Everything()
