"""`aisfs doctor`: checks of this machine, the cluster or store, and the mounts here, in the order in which they are printed.

The checks change nothing.
"""

import base64
import binascii
import errno
import math
import os
import re
import resource
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import trio

from aisfs.core.names.sources import DirectorySource, Everything, Source, absolute, parse_sources
from aisfs.engine.writing.on_disk import DATA, LOCK, StagingErrors
from aisfs.engine.writing.unsent import Session, lost_parts, unsent_files
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ConfigError,
    DaemonSilent,
    MountError,
    NotFound,
    Unavailable,
)
from aisfs.fuse.mountpoint import (
    CONNECTIONS,
    DEVICE,
    FILE_SYSTEM,
    FUSERMOUNT,
    device_problem,
    mounted_filesystems,
    our_mount,
)
from aisfs.model import Bucket
from aisfs.mount.memory import memory_limits
from aisfs.mount.setup import existing, is_local
from aisfs.mount.source import open_source
from aisfs.settings import (
    CACHE_LEAST,
    MEMORY_LEAST,
    MIB,
    CacheSettings,
    ClusterSettings,
    Settings,
    WriteSettings,
    clouds,
    log_directory,
)
from aisfs.settings.values import existing_directory
from aisfs.stores.ais.auth import Credentials
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.cluster import identify_endpoint, wrong_scheme
from aisfs.stores.ais.etls import RUNNING, Etls
from aisfs.stores.ais.replies import HEALTH, Identity
from aisfs.stores.registry import as_served, direct_bucket, kind_of
from aisfs.system.logs import SYSLOG_SOCKET
from aisfs.system.memory import MachineMemory
from aisfs.work.display import counted, size_text
from aisfs.work.mounts import ALIVE, PATIENCE, Asker, Daemon, daemons, read_counters, restarting


class State(StrEnum):
    """Whether something has to be done."""

    OK = "ok"
    NOTE = "note"
    """It works, but could be better."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    found: str
    cure: str = ""
    """What to do; empty if nothing."""


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing to do."""
    return Check(name, State.OK, found)


def note(name: str, found: str, cure: str) -> Check:
    """Return a check that found something that could be better."""
    return Check(name, State.NOTE, found, cure)


def wrong(name: str, found: str, cure: str) -> Check:
    """Return a check that found something wrong."""
    return Check(name, State.WRONG, found, cure)


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SKEW = 300.0
"""Seconds that clocks may differ, as Kerberos and token issuers permit."""
_DAY = 86400
_LOGIN = "log in again: ais auth login"
_ASKED_SECONDS = 5.0
"""How long ETLs are asked for: the cluster has just answered."""
_SET_ENDPOINT = "export AIS_ENDPOINT=http://PROXY:PORT, or give --endpoint"


class _Claims(msgspec.Struct):
    exp: float = math.inf


async def cluster_checks(settings: ClusterSettings, source: Source) -> AsyncIterator[Check]:
    """Check the way to the cluster and the source there, as far as the first obstacle."""
    if not settings.endpoint:
        if is_local(source):
            yield ok("endpoint", "none, and a local directory needs none")
        elif isinstance(source, Everything):
            yield note("endpoint", "none: only what needs no AIStore can be mounted", _SET_ENDPOINT)
        else:
            yield wrong("endpoint", f"none, and {source} needs one", _SET_ENDPOINT)
        return
    token = _token(settings)
    yield token
    try:
        client = AISClient(settings)
    except ConfigError as error:
        if str(error) != token.found:
            yield wrong("TLS", str(error), "mend AIS_CLIENT_CA, AIS_CRT and AIS_CRT_KEY")
        return
    try:
        found = await identify_endpoint(client)
        etls = [check async for check in _etls(client)] if found.is_aistore else []
    except AisfsError as error:
        text = str(error).removeprefix(f"{HEALTH.subject}: ")
        yield await _unreached(settings, text, error)
        return
    finally:
        await client.aclose()
    for check in _identity(settings.endpoint, found):
        yield check
    if found.is_aistore:
        for check in [*_tls(settings), *_clock(found), *_access(found), *etls]:
            yield check
        yield await _source(source, settings)


async def _unreached(settings: ClusterSettings, text: str, error: AisfsError) -> Check:
    endpoint = settings.endpoint
    if isinstance(error, Unavailable) and error.__cause__ is not None and not settings.proxy:
        why = await trio.to_thread.run_sync(wrong_scheme, endpoint)
        text, error = (why, ConfigError(why)) if why else (text, error)
    if isinstance(error, ConfigError):
        found, _, cure = text.rpartition(": ")
        return wrong("TLS", f"{endpoint}: {found or text}", cure)
    if "HTTP 5" in text or "HTTP 429" in text:
        return wrong(
            "endpoint", f"{endpoint}: {text}", "wait, or look at the cluster: ais show cluster"
        )
    host = urlsplit(endpoint).hostname
    cure = f"is AIStore running there, is {host} right, does a firewall let us through?"
    return wrong("endpoint", f"{endpoint} does not answer: {text}", cure)


def _identity(endpoint: str, found: Identity) -> Iterator[Check]:
    cure = "name a proxy of AIStore with --endpoint or AIS_ENDPOINT"
    if found.is_aistore is False:
        yield wrong("endpoint", f"{endpoint} answers, but is no AIStore ({found.seen})", cure)
    elif found.is_aistore is None:
        cure = "a gateway may want a token, or the cluster may be starting; see the log there"
        yield wrong("endpoint", f"{endpoint} does not say what it is ({found.seen})", cure)
    else:
        version = f"AIStore {found.version}" if found.version else "an AIStore"
        yield ok("endpoint", f"{endpoint} is {version}")
        if found.targets == 0:
            yield wrong("targets", "the cluster has no target", "start targets: ais show cluster")
        elif found.targets is not None:
            yield ok("targets", str(found.targets))


def _tls(settings: ClusterSettings) -> Iterator[Check]:
    url = urlsplit(settings.endpoint)
    if url.scheme == "https":
        if settings.skip_verify_crt:
            cure = "unset AIS_SKIP_VERIFY_CRT, and name the CA in AIS_CLIENT_CA"
            yield note("TLS", "the server's certificate is not checked", cure)
        else:
            yield ok("TLS", "the server's certificate is trusted")
    elif url.hostname not in _LOOPBACK and _has_token(settings):
        yield note("TLS", "none: the token travels in the clear", "use https:// if the cluster can")
    else:
        yield ok("TLS", "none")


def _clock(found: Identity) -> Iterator[Check]:
    ahead = found.clock_ahead
    if ahead is None:
        return
    if abs(ahead) > _SKEW:
        how = "ahead of" if ahead > 0 else "behind"
        text = f"the cluster's clock is {abs(ahead):,.0f} seconds {how} ours"
        cure = "set the clocks (timedatectl set-ntp true): tokens and certificates depend on them"
        yield wrong("clock", text, cure)
    else:
        yield ok("clock", "as that of the cluster")


def _access(found: Identity) -> Iterator[Check]:
    if found.map_status == 401:
        yield wrong("access", "the cluster does not accept the token, or wants one", _LOGIN)
    elif found.map_status == 403:
        cure = "only needed to watch targets: grant SHOW-CLUSTER to the token's role"
        yield note("access", "the token may not see the cluster map", cure)


async def _etls(client: AISClient) -> AsyncIterator[Check]:
    """Say which ETLs run; nothing of a cluster that has none."""
    try:
        found = await Etls(client, deadline=_ASKED_SECONDS).all()
    except AccessDenied:
        yield ok("ETLs", "the token may not list them, and need not: reading takes no more rights")
        return
    except AisfsError:
        return
    names = [etl.name for etl in found if etl.stage == RUNNING]
    if names:
        yield ok("ETLs", f"{', '.join(names)} can transform")
    for etl in found:
        if etl.stage != RUNNING:
            yield note("ETLs", f"{etl.name} is {etl.stage}", f"aisfs etl start {etl.name}")


async def _source(source: Source, settings: ClusterSettings) -> Check:
    what = "all buckets" if isinstance(source, Everything) else str(source)
    try:
        async with open_source(source, settings):
            return ok("source", f"{what} can be listed")
    except AccessDenied as error:
        return wrong("source", f"{what}: {error}", _LOGIN)
    except AisfsError as error:
        return wrong(
            "source", str(error), "give a SOURCE as aisfs mount takes it; aisfs ls shows buckets"
        )


# The token ----------------------------------------------------------------------------------------


def _token(settings: ClusterSettings) -> Check:
    """Say where the token comes from; never what it is."""
    origin = _origin(settings)
    if origin is None:
        return ok("token", "none")
    try:
        authorization = Credentials.load(settings).authorization()
    except ConfigError as error:
        return wrong("token", str(error), "log in: ais auth login, or name another file")
    if authorization is None:
        return ok("token", "none")
    expires = _expiry(authorization.removeprefix("Bearer "))
    left = expires - time.time()
    if left <= 0:
        return wrong("token", f"{origin}: expired {_span(-left)} ago", _LOGIN)
    until = "" if expires == math.inf else f", valid for {_span(left)}"
    if isinstance(origin, Path) and origin.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return note("token", f"{origin}{until}: others can read it", f"chmod 600 {origin}")
    return ok("token", f"{origin}{until}")


def _origin(settings: ClusterSettings) -> Path | str | None:
    if settings.token and settings.token.strip():
        return "AIS_AUTHN_TOKEN"
    if settings.authn_token_file:
        return settings.authn_token_file
    try:
        return settings.cli_token_file if settings.cli_token_file.exists() else None
    except OSError:
        return None


def _has_token(settings: ClusterSettings) -> bool:
    return _origin(settings) is not None


def _expiry(token: str) -> float:
    """Return when a token expires, if it is a JWT that says so."""
    try:
        middle = token.split(".")[1]
        claims = base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except (IndexError, binascii.Error, ValueError, msgspec.MsgspecError):
        return math.inf


def _span(seconds: float) -> str:
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:.0f} days"
    return f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"


async def direct_checks(
    settings: ClusterSettings, source: Source, bucket: Bucket
) -> AsyncIterator[Check]:
    """Check the way to a store, up to the first obstacle.

    Args:
        settings: How to reach it.
        source: What to read, as it is served.
        bucket: One of its buckets, all of which that store has.
    """
    store, kind = bucket.store, kind_of(bucket)
    endpoint = clouds.endpoint_of(store)
    where = kind.title.format(store) + (f" at {endpoint}" if endpoint else "")
    yield ok("store", f"{where}, without AIStore in between")
    if kind.is_cloud:
        yield _credentials(settings, store)
    try:
        async with open_source(source, settings):
            yield ok("source", f"{source} can be listed")
    except AccessDenied as error:
        cure = "set other credentials, or give --anonymous if everybody may read it"
        yield wrong("source", str(error), cure)
    except NotFound as error:
        yield wrong("source", str(error), "look at the name, the region and the account")
    except Unavailable as error:
        yield wrong("source", str(error), "is the network up, and is the endpoint right?")
    except ConfigError as error:
        yield wrong("source", str(error), "mend this, and run aisfs doctor again")
    except AisfsError as error:
        yield wrong("source", str(error), "give a SOURCE as aisfs mount takes it")


def _credentials(settings: ClusterSettings, store: str) -> Check:
    """Say where credentials come from; never what they are."""
    if settings.anonymous:
        return ok("credentials", "none, with --anonymous")
    found = clouds.credentials_of(store)
    if found:
        return ok("credentials", found)
    cure = "give --anonymous for what everybody may read, or set them as the cloud's tools want it"
    return note("credentials", "none are set: those of this machine, if it has a role", cure)


LOCKS = Path("/proc/locks")

_NETWORK = re.compile(r"(nfs\d?|cifs|smb3?|smbfs|ceph|glusterfs|lustre|gpfs|9p|afs|beegfs)$|fuse\.")
"""Types on which SQLite's locks or mapped files are not to be relied on."""
_TRIAL = 32 * MIB
"""Bytes written to measure the disk, to a file without a name."""
_SLOW = 50 * MIB
"""Bytes per second; a link of 1 Gbit/s brings more."""
_LITTLE_ROOM = 1 << 30


def disk_checks(cache: CacheSettings, writing: WriteSettings) -> Iterator[Check]:
    """Check the directories that daemons write to."""
    yield from _cache(cache)
    yield _staged(writing.staging_dir)


def _cache(settings: CacheSettings) -> Iterator[Check]:
    name, directory = "cache directory", settings.cache_dir
    try:
        place = existing_directory(directory, "cache-dir")
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    except (ConfigError, OSError) as error:
        yield wrong(name, str(error), "name a directory that you may write with --cache-dir")
        return
    if not place.is_dir():
        yield wrong(name, f"{place} is no directory", "name a directory with --cache-dir")
        return
    kind = _file_system(place)
    if _NETWORK.match(kind):
        found = f"{directory} is on a network file system ({kind}), where its database may break"
        yield wrong(name, found, "name a directory on a local disk with --cache-dir")
    where = str(directory) if place == directory else f"{directory}, not made yet,"
    found = f"{where} on {kind}, {size_text(free)} free"
    if free < CACHE_LEAST:
        yield wrong(
            name, f"{found}: full", "make room, aisfs cache clear, or name another --cache-dir"
        )
        return
    try:
        speed = _speed(place, min(_TRIAL, free // 2))
    except OSError as error:
        yield wrong(
            name,
            f"{place}: {error.strerror}",
            "name a directory that you may write with --cache-dir",
        )
        return
    if free < _LITTLE_ROOM:
        yield note(name, found, "make room, or name a larger disk with --cache-dir")
    else:
        yield ok(name, found)
    if speed is not None:
        told = f"writes {size_text(speed)}/s"
        cure = "name a directory on a faster disk with --cache-dir, or mount with --cache-size 0"
        yield note("cache disk", told, cure) if speed < _SLOW else ok("cache disk", told)


def _speed(directory: Path, size: int) -> int | None:
    """Return bytes per second, or None where files without a name cannot be.

    Raises:
        OSError: the directory cannot be written.
    """
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except IsADirectoryError:  # what a file system says that knows nothing of O_TMPFILE
        return None
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
    try:
        piece = os.urandom(MIB)
        started = time.monotonic()
        for _ in range(max(1, size // MIB)):
            os.write(descriptor, piece)
        os.fsync(descriptor)
        return int(max(MIB, size) / max(time.monotonic() - started, 1e-6))
    finally:
        os.close(descriptor)


def _file_system(path: Path) -> str:
    """Return the type of the file system that a path is on."""
    resolved = Path(os.path.realpath(path))
    above = [
        (place, kind) for place, kind in mounted_filesystems() if resolved.is_relative_to(place)
    ]
    deepest = max((len(place.parts) for place, _ in above), default=0)
    return next((kind for place, kind in reversed(above) if len(place.parts) == deepest), "unknown")


def _staged(directory: Path) -> Check:
    """Check for files that no daemon will upload any more."""
    name = "staged files"
    try:
        with StagingErrors(directory):
            files, lost = unsent_files(directory), lost_parts(directory)
            dirty = (path for session in _dead_sessions(directory) for path in session.dirty())
            left = {path.with_suffix(DATA) for path in dirty} - {file.path for file in files}
    except AisfsError as error:
        return wrong(name, str(error), "run this as the user who mounts")
    if lost:
        return wrong(name, f"closed files are damaged: {lost[0]}", "aisfs recover lists them")
    if not files and not left:
        return ok(name, f"nothing is left to upload in {directory}")
    size = sum(file.size for file in files) + sum(path.stat().st_size for path in left)
    number = counted(len(files) + len(left), "file")
    found = f"never uploaded: {number} ({size:,} bytes) in {directory}"
    return wrong(name, found, "aisfs recover lists them; --upload or --drop ends that")


def _dead_sessions(directory: Path) -> Iterator[Session]:
    """Find what daemons left that were killed: sessions whose lock nobody holds."""
    held = {line.split()[-3].rpartition(":")[2] for line in LOCKS.read_text().splitlines()}
    for lock in sorted(directory.glob(f"*/{LOCK}")):
        with suppress(FileNotFoundError):  # it has ended meanwhile
            if str(lock.stat().st_ino) not in held:
                yield Session.at(lock.parent)


CONFIGURATION = Path("/etc/fuse.conf")
STATUS = Path("/proc/self/status")

_GOOD_KERNEL = (5, 1)
"""The first that opens directories without asking; older ones work."""


def fuse_checks() -> Iterator[Check]:
    """Check what mounting needs."""
    yield _kernel()
    yield _device()
    yield _fusermount()
    yield _library()
    yield _allow_other()
    yield _setpriv()
    yield _fusectl()


def _kernel() -> Check:
    system = os.uname()
    text = f"{system.sysname} {system.release} ({system.machine})"
    if system.sysname != "Linux":
        return wrong("kernel", text, "aisfs needs Linux")
    numbers = re.match(r"(\d+)\.(\d+)", system.release)
    if numbers and (int(numbers[1]), int(numbers[2])) < _GOOD_KERNEL:
        cure = "a kernel from 5.1 on opens directories without asking the daemon"
        return note("kernel", text, cure)
    return ok("kernel", text)


def _device() -> Check:
    if problem := device_problem():
        return wrong("fuse device", *problem)
    return ok("fuse device", f"{DEVICE} can be opened")


def _fusermount() -> Check:
    program = shutil.which(FUSERMOUNT)
    if program is None:
        found, cure = "not installed", "on Debian: apt install fuse3"
        if os.geteuid() == 0:
            return note(FUSERMOUNT, f"{found}; root needs it only with --no-fastpath", cure)
        return wrong(FUSERMOUNT, found, cure)
    if os.geteuid() == 0:
        return ok(FUSERMOUNT, program)
    status = os.stat(program)
    if not status.st_mode & stat.S_ISUID or status.st_uid:
        cure = f"as root: chown root {program} && chmod 4755 {program}"
        return wrong(FUSERMOUNT, f"{program} is not setuid root, so it cannot mount", cure)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        cure = "as root: remount that file system with suid"
        return wrong(FUSERMOUNT, f"{program} is on a file system mounted nosuid", cure)
    if _no_new_privileges():
        cure = "allow it, as with --security-opt no-new-privileges=false, or mount as root"
        return wrong(FUSERMOUNT, "this process may not gain privileges (no_new_privs)", cure)
    return ok(FUSERMOUNT, program)


def _no_new_privileges() -> bool:
    with suppress(OSError):
        return bool(re.search(r"^NoNewPrivs:\s*1$", STATUS.read_text(), re.MULTILINE))
    return False


def _library() -> Check:
    try:
        from aisfs.fuse.operations import serves_descriptors  # loads libfuse
    except ImportError as error:
        return wrong("libfuse", f"cannot be loaded: {error}", "on Debian: apt install libfuse3-3")
    if not serves_descriptors():
        cure = "install libfuse 3.3 or later; until then mounts go without the fast path"
        return note("libfuse", "older than 3.3", cure)
    return ok("libfuse", "can serve the fast path")


def _allow_other() -> Check:
    if os.geteuid() == 0:
        return ok("user_allow_other", "root needs none for --allow-other")
    with suppress(OSError):
        lines = CONFIGURATION.read_text(errors="replace").splitlines()
        if "user_allow_other" in (line.partition("#")[0].strip() for line in lines):
            return ok("user_allow_other", f"set in {CONFIGURATION}")
    cure = f"for --allow-other, as root: echo user_allow_other >> {CONFIGURATION}"
    return note("user_allow_other", "not set, so only you can use your mounts", cure)


def _setpriv() -> Check:
    program = shutil.which("setpriv")
    if program is None:
        found = "not installed: readers may hang if the daemon is killed with -9"
        return note("setpriv", found, "on Debian: apt install util-linux")
    return ok("setpriv", program)


def _fusectl() -> Check:
    if CONNECTIONS.is_mount():
        return ok("fusectl", f"mounted on {CONNECTIONS}")
    found = f"not mounted on {CONNECTIONS}: a hanging mount cannot be aborted"
    return note("fusectl", found, f"as root: mount -t fusectl none {CONNECTIONS}")


_FEW_FILES, _TOO_FEW_FILES = 4096, 1024
"""Connections to 32 targets at once and open cache files; below the second, reads fail early."""


def machine_checks(cache: CacheSettings) -> Iterator[Check]:
    """Check what a daemon needs to run."""
    yield _open_files()
    yield _memory(cache, MachineMemory())
    yield _log()


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    found = f"limit {soft:,}, which the daemon raises up to {hard:,}"
    cure = (
        "raise the hard limit: ulimit -Hn 65536 as root, limits.conf, or LimitNOFILE= of the unit"
    )
    if hard < _TOO_FEW_FILES:
        return wrong("open files", f"hard limit of only {hard:,}", cure)
    return note("open files", found, cure) if hard < _FEW_FILES else ok("open files", found)


def _memory(cache: CacheSettings, memory: MachineMemory) -> Check:
    available, limits = memory.available(), memory_limits(cache, memory)
    if available is None:
        return ok("memory", "unknown")
    limit = limits.fetched
    found = f"{size_text(max(0, available))} available; fetched bytes take up to {size_text(limit)}"
    if limits.why:
        found += f", as {limits.why}"
    if available < limit:
        least = max(MEMORY_LEAST, available // 2) // MIB
        return wrong("memory", found, f"mount with --memory-limit {least}MiB")
    return ok("memory", found)


def _log() -> Check:
    if SYSLOG_SOCKET.exists():
        return ok("system's log", f"{SYSLOG_SOCKET} takes the log of daemons")
    text = f"no {SYSLOG_SOCKET}: daemons log to {log_directory()} by default"
    return note("system's log", text, "mount with --log-file FILE to have it elsewhere")


def mount_checks() -> Iterator[Check]:
    """Check that all mounts of aisfs have a daemon."""
    places = [place for place, kind in mounted_filesystems() if kind == FILE_SYSTEM]
    running = daemons()
    found = [stopped for place in places if (stopped := _stopped(place, running)) is not None]
    dead = restarting(places)
    found += _silent([place for place in places if str(place) not in running or place in dead])
    yield from found
    if not found:
        count = f"{len(places)} mount{'s' if len(places) != 1 else ''} of aisfs"
        yield ok("mounts", f"{count}, none without a daemon" if places else "no mount of aisfs")


def _stopped(place: Path, running: dict[str, Daemon]) -> Check | None:
    daemon = running.get(str(place))
    if daemon is None or not daemon.stopped:
        return None
    return wrong(
        "mounts", f"{place}: its daemon {daemon.pid} is stopped", f"kill -CONT {daemon.pid}"
    )


def _silent(places: list[Path]) -> Iterator[Check]:
    """Ask mounts whose daemon is not to be found, all at once."""
    with Asker() as asker:
        answers = asker.ask(places, ALIVE)
    dead = restarting(places) if None in answers else set()
    for place, answer in zip(places, answers, strict=True):
        if answer is None and place in dead:
            cure = f"its log says why; to detach it: aisfs umount --lazy {place}"
            yield wrong(
                "mounts", f"{place}: its daemon has died, and another one cannot go on yet", cure
            )
        elif answer is None:
            cure = f"look for its daemon, or detach it: aisfs umount --lazy {place}"
            yield wrong("mounts", f"{place}: no answer within {PATIENCE:.0f} seconds", cure)
        elif isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            cure = f"aisfs umount {place}, or mount again at the same place"
            yield wrong("mounts", f"{place}: its daemon has died", cure)


_OF_MOUNT = ("endpoint", "cache_dir")
"""Settings that a mount reports."""

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
    bucket = direct_bucket(served)
    found = direct_checks(cluster, served, bucket) if bucket else cluster_checks(cluster, source)
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
        return kind.load({name: v for name, v in given.items() if name in kind.options})
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
