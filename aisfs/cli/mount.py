"""`aisfs mount`: its options, and the process that serves the mount."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import trio
from click.core import ParameterSource

from aisfs.app.plan import MountPlan, plan_mount
from aisfs.cli.exits import Exit, exit_code, fail
from aisfs.cli.mount_args import sort_options
from aisfs.cli.options import (
    cache_dir_option,
    cache_size_option,
    endpoint_option,
    flag,
    io_timeout_option,
    log_options,
    setting,
    staging_dir_option,
)
from aisfs.config import KeyRule, Shards, View
from aisfs.errors import AisfsError, ConfigError
from aisfs.process import daemon, logs
from aisfs.process.imports import loading

log = logging.getLogger(__name__)

_NO_FASTPATH = frozenset({"no_fastpath", "no_lane"})


@click.command(
    options_metavar="[OPTIONS]",
    epilog="Environment: AIS_ENDPOINT, AIS_AUTHN_TOKEN, AIS_AUTHN_TOKEN_FILE, AIS_CLIENT_CA, AIS_CRT, "
    "AIS_CRT_KEY, AIS_SKIP_VERIFY_CRT, AIS_CONNECT_TIMEOUT, AIS_READ_TIMEOUT, as for the ais CLI.",
)
@click.argument("where", nargs=-1, metavar="[SOURCE…] MNT")
@endpoint_option
@click.option(
    "--shards",
    type=click.Choice([s.value for s in Shards]),
    help="How X.tar is shown: file [default] (its members are in X.tar.d/, which is not listed), dir "
    "(X.tar is a directory, its bytes are X.tar.raw), or both (X.tar and X.tar.d are listed).",
)
@click.option(
    "--view",
    type=click.Choice([v.value for v in View]),
    help="Show the members of all shards of SOURCE as one dataset: a folder for each shard (members), "
    "for each sample in it (samples), for each label (class), or all in one folder (flat). Or show "
    "loose objects as tar files (shards).",
)
@click.option(
    "--key-rule",
    type=click.Choice([r.value for r in KeyRule]),
    help="The key of a sample: the path up to its first dot (wds) [default], up to its last dot "
    "(last-dot), or the last component up to its first dot (basename).",
)
@setting("--require EXT[,EXT]", "Leave out samples that lack one of these components.")
@setting(
    "--label FROM",
    "Where labels come from: cls [default], txt, json:PATH, dir, re:REGEX, csv:OBJECT.",
)
@setting(
    "--image EXT[;EXT]",
    "Component that --view class shows of a sample: the first it has [jpg;jpeg;png].",
)
@setting("--classes FILE", "File with the names of classes 0, 1, …, one per line.")
@setting("--samples-per-shard N", "Samples in each tar of --view shards [1000].")
@setting("--shard-size SIZE", "Most bytes in each tar of --view shards, such as 1GiB.")
@setting("--shuffle SEED", "With --view shards: shuffle the samples, reproducibly.")
@setting("--files-from FILE", "Read sources from FILE, one per line; - is stdin.")
@setting("--include GLOB", "Show only keys that match GLOB; repeatable.", multiple=True)
@setting("--exclude GLOB", "Leave out keys that match GLOB; repeatable.", multiple=True)
@flag("--ignore-zeros", "Read past zero blocks, for tars joined by cat.")
@flag("--recursive", "Also open tars inside shards.")
@flag("--magic", "Recognize archives by content, not by name; X.d/ opens any archive X.")
@flag(
    "--shard-index",
    "Use AIStore's own index of a shard, where there is one, instead of scanning the shard.",
)
@setting("--attr-ttl S", "Seconds until a name looked up alone is looked up again [60].")
@setting("--list-ttl S", "Seconds until a directory is listed again [60].")
@setting("--negative-ttl S", "Seconds until a missing name is looked up again [5].")
@io_timeout_option
@flag(
    "--latest",
    "Check objects of a cloud or another cluster against the original when they are read.",
)
@setting("--max-connections N", "Most requests at once [32].")
@setting(
    "--part-size SIZE",
    "Upload larger files in parts of this size, while they are written [256MiB].",
)
@cache_dir_option
@cache_size_option
@setting("--read-ahead-max SIZE", "Most bytes fetched ahead of a sequential reader [64MiB].")
@setting(
    "--prefetch-shards N", "Shards fetched ahead of a reader that takes them in name order [2]."
)
@setting("--memory-limit SIZE", "Most bytes of objects in memory [512MiB].")
@flag("--no-fastpath", "Serve the kernel through pyfuse3 alone: slower, with the same results.")
@click.option("--no-lane", is_flag=True, default=None, hidden=True)
@flag("--writable", "Permit changes: files are staged, and uploaded when they are closed.")
@staging_dir_option
@setting("--staging-size SIZE", "Most bytes in the staging directory [half of the free disk].")
@setting("--rename-dir-limit N", "Most objects of a directory that can be renamed [1000].")
@flag("--ignore-attr-changes", "Accept and ignore owners, modes and times that cannot be kept.")
@click.option("--allow-other", is_flag=True, help="Give other users access.")
@setting("--uid N", "Owner of everything [you].")
@setting("--gid N", "Group of everything [yours].")
@setting("--file-mode OCT", "Permissions of files [0444, or 0644 if writable].")
@setting("--dir-mode OCT", "Permissions of directories [0555, or 0755 if writable].")
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground.")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPT[,OPT]",
    help="Options of mount(8), and the options above as name=value.",
)
@log_options
def mount(
    where: tuple[str, ...],
    options: tuple[str, ...],
    foreground: bool,
    log_level: str,
    log_file: Path | None,
    allow_other: bool,
    **settings: object,
) -> int:
    """Mount SOURCE on the directory MNT.

    SOURCE is ais://BUCKET, ais://BUCKET/PREFIX/ or a local directory. Without SOURCE, every bucket
    of the cluster appears at MNT/PROVIDER/BUCKET. Several sources, shards as in
    'ais://pets/samples-{00..18}.tar' or 'shards/*.tar', or --view show the shards as one dataset.
    The command returns when the mount is ready.
    """
    with loading():  # --help does not need it
        from aisfs.app import mount as mounts

    if not where:
        raise click.UsageError("expected [SOURCE…] MNT")
    if len(where) == 1 and "://" in where[0]:
        raise click.UsageError(
            f"expected [SOURCE…] MNT: which directory is {where[0]} to be mounted on?"
        )
    kernel, named = _sort(options, settings)
    kernel |= {"allow_other"} if allow_other else set()
    log_level, log_file = _resolve_log(named, log_level, log_file)
    given = {**named, **{name: v for name, v in settings.items() if v not in (None, ())}}
    for name in _NO_FASTPATH & given.keys():
        del given[name]
        given["fastpath"] = False
    *sources, mountpoint = where
    plan = plan_mount(sources, Path(mountpoint), kernel, given)
    mounts.check(plan)
    log_file = log_file.absolute() if log_file is not None else None
    try:
        logs.configure(log_level, log_file, foreground=foreground)
    except OSError as error:
        raise ConfigError(f"--log-file {log_file}: {error.strerror}") from error
    if foreground:
        trio.run(mounts.run, plan, lambda: None)
        return Exit.OK
    code, reason = daemon.detach(lambda ready, failed: _serve(plan, ready, failed))
    return fail(reason or "the daemon ended at once; see its log", code or 1) if code else Exit.OK


def _sort(
    options: tuple[str, ...], settings: Mapping[str, object]
) -> tuple[set[str], dict[str, object]]:
    """Sort the values of -o into options of mount(8) and our own; see `sort_options`."""
    ours = [o for o in mount.params if o.name in (*settings, "log_level", "log_file")]
    flags = {o.name for o in ours if isinstance(o, click.Option) and o.is_flag}
    lists = {o.name for o in ours if o.multiple}
    names = {o.name for o in ours if o.name} - _NO_FASTPATH
    return sort_options(options, names, flags, lists)


def _resolve_log(
    named: dict[str, object], level: str, file: Path | None
) -> tuple[str, Path | None]:
    """Return the level and the file of the log: `--log-level` and `--log-file` win over -o."""
    typed = click.get_current_context().get_parameter_source("log_level")
    wanted = str(named.pop("log_level", level))
    if typed is ParameterSource.COMMANDLINE:
        wanted = level
    elif wanted.lower() not in logs.LEVELS:
        raise ConfigError(f"-o log_level={wanted}: one of {', '.join(logs.LEVELS)}")
    named_file = named.pop("log_file", None)
    return wanted, file or (Path(str(named_file)) if named_file else None)


def _serve(plan: MountPlan, ready: Callable[[], None], failed: Callable[[str, int], None]) -> None:
    """Run the mount in the background process; report when it is ready, or why it failed."""
    from aisfs.app import mount as mounts

    try:
        trio.run(mounts.run, plan, ready)
    except AisfsError as error:
        log.error("%s", error)  # the parent prints it too, unless the mount was ready before
        failed(str(error), exit_code(error))
    except Exception as error:
        log.exception("the mount ended on a bug in aisfs, please report it")
        failed(f"unexpected {type(error).__name__}: {error}", Exit.FAILURE)
