"""`aisfs mount`: its options, those behind `-o` as mount(8) and fstab write them, and `mount.aisfs`.

That helper is what mount(8) runs for `mount -t aisfs` and for lines of `/etc/fstab`. It is a link to the program, so it
finds the program wherever that is installed.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from aisfs.choices import Join, KeyRule, ShardIndex, Shards, View
from aisfs.commands.guide import Documented, complete_place, help_all_option
from aisfs.commands.options import (
    Exit,
    cache_dir_option,
    cache_size_option,
    config_option,
    encoding_option,
    files_from_option,
    flag,
    index_bucket_option,
    io_timeout_option,
    log_options,
    no_published_index_flag,
    scan_option,
    setting,
    slow_request_option,
    staging_dir_option,
    start_logging,
    store_options,
    with_switched_off,
    without_unset,
)
from aisfs.errors import ConfigError
from aisfs.system.daemon import loading

# What fstab and mount(8) add and aisfs has no use for; the second set goes to the kernel.
_IGNORED = frozenset(
    [
        "defaults",
        "ro",
        "auto",
        "noauto",
        "nofail",
        "_netdev",
        "_rnetdev",
        "comment",
        "async",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "atime",
        "noatime",
        "diratime",
        "nodiratime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
    ]
)
_SECRETS = frozenset({"token", "authn_token", "password"})
_COMMA = re.compile(r"(?<!\\),")
_KERNEL = frozenset(
    {"allow_other", "allow_root", "nonempty", "dev", "nodev", "suid", "nosuid", "exec", "noexec"}
)


def sort_options(
    given: tuple[str, ...],
    settings: Collection[str],
    flags: Mapping[str, object] = MappingProxyType({}),
    lists: Collection[str] = (),
    *,
    sloppy: bool = False,
) -> tuple[set[str], dict[str, object]]:
    """Separate the kernel's options from those of aisfs, which fstab can only write behind -o.

    A comma within a value is written `\\,`, as in libfuse.

    Args:
        given: The value of each -o.
        settings: Names of the options of aisfs that take a value.
        flags: Those that need none, and the value they have without one.
        lists: Names of those that may be repeated.
        sloppy: Ignore unknown options, as `mount -s` asks.

    Returns:
        Options for the kernel, and values by name of the option of aisfs.

    Raises:
        ConfigError: the option is unknown, or a secret.
    """
    kernel: set[str] = set()
    named: dict[str, object] = {}
    listed: dict[str, list[str]] = defaultdict(list)
    for option in _COMMA.split(",".join(given)):
        word, _, value = option.strip().replace("\\,", ",").partition("=")
        name = word.replace("-", "_")
        if word in _KERNEL:
            kernel.add(word)
        elif name in lists and value:
            listed[name].append(value)
        elif name in settings and value:
            named[name] = value
        elif name in flags:
            named[name] = flags[name]
        elif word == "rw":
            kernel.add(word)
        elif name in _SECRETS:
            raise ConfigError(
                f"-o {word}: any user can read it in the list of processes; write it into a file"
                " and give -o authn_token_file=FILE"
            )
        elif word == "remount":
            raise ConfigError("-o remount: unmount it, and mount it again")
        elif word and word not in _IGNORED and not word.startswith(("x-", "X-")) and not sloppy:
            raise ConfigError(f"-o {word}: unknown mount option")
    return kernel, {**named, **{name: tuple(values) for name, values in listed.items()}}


def with_values(
    arguments: Sequence[str], optional: Mapping[str, tuple[str, Collection[str]]]
) -> list[str]:
    """Return the arguments with a value for each option that was typed without one.

    Args:
        arguments: As typed.
        optional: By option the value that is meant, and the values that may follow as a word of its
            own; any other word is the next argument.
    """
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return [*found, *arguments[at:]]
        meant, values = optional.get(word, ("", ()))
        alone = word in optional and arguments[at + 1 : at + 2] not in [[v] for v in values]
        found.append(f"{word}={meant}" if alone else word)
    return found


_JOINS = tuple(join.value for join in Join)
_SHARD_INDEX = tuple(when.value for when in ShardIndex)
_BARE = {"--join": (Join.INNER, _JOINS), "--shard-index": (ShardIndex.ALWAYS, _SHARD_INDEX)}
"""Options that may go without their value: which one is meant then, and all there are."""


_RARE = frozenset(
    [
        "allow_bucket_changes",
        "attr_ttl",
        "bandwidth_limit",
        "client_ca",
        "client_cert",
        "client_key",
        "create_bucket",
        "dir_mode",
        "file_mode",
        "http_headers",
        "ignore_attr_changes",
        "ignore_zeros",
        "index_bucket",
        "latest",
        "lazy",
        "list_ttl",
        "list_xattrs",
        "log_format",
        "magic",
        "max_connections",
        "memory_limit",
        "negative_ttl",
        "no_fastpath",
        "no_published_index",
        "part_size",
        "prefetch_shards",
        "read_ahead_max",
        "recursive",
        "rename_dir_limit",
        "require",
        "samples_per_shard",
        "scan",
        "shard_index",
        "shard_size",
        "shuffle",
        "skip_verify_crt",
        "slow_request",
        "staging_dir",
        "staging_size",
        "strict",
        "upload_limit",
    ]
)
"""What `--help` leaves to `--help-all`: options for special data, networks, disks and measurements."""


class _Mount(Documented):
    """A command whose options in `_BARE` may go without their values."""

    rare = _RARE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args, _BARE))


@click.command(
    cls=_Mount,
    options_metavar="[OPTIONS]",
    epilog="Environment: AIS_ENDPOINT, AIS_AUTHN_TOKEN, AIS_AUTHN_TOKEN_FILE, AIS_CLIENT_CA, AIS_CRT, "
    "AIS_CRT_KEY, AIS_SKIP_VERIFY_CRT, AIS_CONNECT_TIMEOUT, AIS_READ_TIMEOUT, as for the ais CLI.",
)
@click.argument("where", nargs=-1, metavar="[SOURCE…] MNT", shell_complete=complete_place)
@store_options
@setting("--client-ca FILE", "Certificates to trust, in PEM [AIS_CLIENT_CA].")
@setting("--client-cert FILE", "Certificate of this client [AIS_CRT].")
@setting("--client-key FILE", "Its key, unless the certificate's file has it [AIS_CRT_KEY].")
@flag("--skip-verify-crt", "Do not check the server's certificate [AIS_SKIP_VERIFY_CRT].")
@setting("--authn-token-file FILE", "File with the token, as JSON [AIS_AUTHN_TOKEN_FILE].")
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
@setting(
    "--member-include GLOB", "In views: only members whose path matches; repeatable.", multiple=True
)
@setting(
    "--member-exclude GLOB", "In views: no members whose path matches; repeatable.", multiple=True
)
@setting("--require EXT[,EXT]", "Leave out samples that lack one of these components.")
@setting(
    "--label FROM",
    "Where labels come from: cls, txt, json:PATH, dir, re:REGEX, csv:OBJECT [cls; dir if no sample has it].",
)
@setting(
    "--image EXT[;EXT]",
    "Component that --view class shows of a sample: the first it has [jpg;jpeg;png]; jpg also finds "
    "image.jpg; all: each picture.",
)
@setting(
    "--classes FILE",
    "File with the names of classes 0, 1, …, one per line [classes.txt beside the shards].",
)
@setting("--samples-per-shard N", "Samples in each tar of --view shards [1000].")
@setting("--shard-size SIZE", "Most bytes in each tar of --view shards, such as 1GiB.")
@setting("--shuffle SEED", "With --view shards: shuffle the samples, reproducibly.")
@click.option(
    "--join",
    type=click.Choice(_JOINS),
    metavar=f"[{'|'.join(_JOINS)}]",
    help="Combine the parts of each sample from all sources, by its key. Show the samples that every "
    "source has (inner, the default), or all (outer).",
)
@flag(
    "--lazy",
    "Return before all shards of --view class or flat are open; the first listing then waits.",
)
@flag("--strict", "Fail if --view class or flat shows nothing.")
@files_from_option
@setting("--include GLOB", "Show only keys that match GLOB; repeatable.", multiple=True)
@setting("--exclude GLOB", "Leave out keys that match GLOB; repeatable.", multiple=True)
@flag("--ignore-zeros", "Read past zero blocks, for tars joined by cat.")
@flag("--recursive", "Also open tars inside shards.")
@encoding_option
@flag("--magic", "Recognize archives by content, not by name; X.d/ opens any archive X.")
@index_bucket_option
@no_published_index_flag
@click.option(
    "--shard-index",
    metavar="[WHEN]",
    type=click.Choice(_SHARD_INDEX),
    help="Use AIStore's own index of a shard, where there is one, instead of scanning the shard: in "
    "--view class and flat (auto) [default], always (also without WHEN), or never.",
)
@scan_option
@flag("--list-xattrs", "List the extended attributes of aisfs; they can always be read by name.")
@setting("--attr-ttl S", "Seconds until a name looked up alone is looked up again [60].")
@setting("--list-ttl S", "Seconds until a directory is listed again [60].")
@setting("--negative-ttl S", "Seconds until a missing name is looked up again [5].")
@io_timeout_option
@flag(
    "--latest",
    "Check objects of a cloud or another cluster against the original when they are read.",
)
@setting(
    "--bandwidth-limit SIZE", "Most bytes a second to fetch, such as 100MiB; 0: no limit [none]."
)
@setting("--upload-limit SIZE", "Most bytes a second to send; 0: no limit [none].")
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
@setting("--memory-limit SIZE", "Most bytes of objects in memory [512MiB, or what fits].")
@flag("--no-fastpath", "Serve the kernel through pyfuse3 alone: slower, with the same results.")
@click.option("--no-lane", is_flag=True, default=None, hidden=True)
@flag("--writable", "Permit changes: files are staged, and uploaded when they are closed.")
@flag("--create-bucket", "With --writable: make the bucket of SOURCE if it is missing.")
@flag("--allow-bucket-changes", "With --writable and all buckets: mkdir makes buckets.")
@staging_dir_option
@setting("--staging-size SIZE", "Most bytes in the staging directory [half of the free disk].")
@setting(
    "--write-back S",
    "With --writable: close small files once they are safe on the local disk, and upload them after S "
    "seconds; 0: before close returns [0].",
)
@setting("--rename-dir-limit N", "Most objects of a directory that can be renamed [1000].")
@flag("--ignore-attr-changes", "Accept and ignore owners, modes and times that cannot be kept.")
@click.option(
    "--allow-other", is_flag=True, envvar="AISFS_ALLOW_OTHER", help="Give other users access."
)
@setting("--uid N", "Owner of everything [you].")
@setting("--gid N", "Group of everything [yours].")
@setting("--file-mode OCT", "Permissions of files [0444, or 0644 if writable].")
@setting("--dir-mode OCT", "Permissions of directories [0555, or 0755 if writable].")
@setting(
    "--metrics-addr HOST:PORT",
    "Serve counters for Prometheus at /metrics, and /healthz; PORT alone is for this machine only.",
)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground.")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPT[,OPT]",
    help="Options of mount(8), and the options above as name=value.",
)
@click.option("--sloppy", is_flag=True, hidden=True)
@click.option("--fake", is_flag=True, hidden=True)
@config_option
@log_options
@slow_request_option
@help_all_option
def mount(
    where: tuple[str, ...],
    options: tuple[str, ...],
    foreground: bool,
    allow_other: bool,
    sloppy: bool,
    fake: bool,
    config: Path | None,
    **settings: object,
) -> int:
    """Mount SOURCE on the directory MNT.

    SOURCE is ais://BUCKET, ais://BUCKET/PREFIX/ or a local directory. Without SOURCE, every bucket
    of the cluster appears at MNT/PROVIDER/BUCKET. Several sources, shards as in
    'ais://pets/samples-{00..18}.tar' or 'shards/*.tar', or --view show the shards as one dataset.
    @NAME makes the mount that the configuration file describes under that name. The command returns
    when the mount is ready; with --view class or flat, that is when all shards are open.
    """
    with loading():  # --help and completion do not need it
        from aisfs.commands.mount_start import Reload, run_in_background, run_in_foreground
        from aisfs.commands.profiles import expand_profile
        from aisfs.mount import run as mounts
        from aisfs.mount.plan import load, plan_mount
        from aisfs.settings import LogSettings, use_file

    if not where:
        raise click.UsageError("expected [SOURCE…] MNT")
    if len(where) == 1 and "://" in where[0]:
        raise click.UsageError(
            f"expected [SOURCE…] MNT: which directory is {where[0]} to be mounted on?"
        )
    _, said = _sort(options, settings, sloppy=sloppy)
    use_file(Path(str(said.pop("config"))) if "config" in said else config)
    profile = where[0][1:] if where[0].startswith("@") else None
    where, options, described = expand_profile(where, options)
    kernel, named = _sort(options, settings, sloppy=sloppy)
    typed = {**named, **{name: v for name, v in settings.items() if v not in (None, ())}}
    named = {**described, **named}
    named.pop("config", None)
    kernel |= {"allow_other"} if named.pop("allow_other", None) or allow_other else set()
    given = with_switched_off({**named, **without_unset(settings)})
    *sources, mountpoint = where
    plan = plan_mount(sources, Path(mountpoint), kernel, given)
    mounts.check(plan)
    if fake:
        return Exit.OK
    log_settings = load(LogSettings, given)
    start = partial(start_logging, foreground=foreground, mountpoint=plan.mountpoint)
    own_log = start(log_settings)
    reload = Reload(typed, profile, log_settings, start)
    if foreground:
        return run_in_foreground(plan, reload, warn_also=log_settings.log_file is not None)
    return run_in_background(plan, reload, own_log)


def _sort(
    options: tuple[str, ...], settings: Mapping[str, object], *, sloppy: bool
) -> tuple[set[str], dict[str, object]]:
    """Sort the values of -o into options of mount(8) and our own; see `sort_options`."""
    ours = [o for o in mount.params if o.name in (*settings, "config")]
    flags: dict[str, object] = {
        o.name: True for o in ours if isinstance(o, click.Option) and o.is_flag and o.name
    }
    flags["join"] = Join.INNER.value
    flags["shard_index"] = ShardIndex.ALWAYS.value
    lists = {o.name for o in ours if o.multiple}
    names = {o.name for o in ours if o.name} - {"no_fastpath", "no_lane"}
    return sort_options(options, names, flags, lists, sloppy=sloppy)


_EVERY_BUCKET = "aisfs"
"""The first field of a line cannot be empty. It is the name that such a mount has, by which
`mount -a` finds that it is there already."""
_WRONG_CALL, _MOUNT_FAILED = 1, 32
"""Exit codes, as mount(8) has them."""


@click.command(name="mount.aisfs", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("mountpoint", metavar="MNT")
@click.option("-o", "options", multiple=True, metavar="OPT[,OPT]", help="Mount options.")
@click.option("-s", "sloppy", is_flag=True, help="Ignore options that are unknown.")
@click.option("-f", "fake", is_flag=True, help="Check everything, but do not mount.")
@click.option("-v", is_flag=True, expose_value=False, help="Ignored.")
@click.option("-n", is_flag=True, expose_value=False, help="Ignored.")
@click.option("-t", metavar="TYPE", expose_value=False, help="Ignored.")
def mount_helper(
    source: str, mountpoint: str, options: tuple[str, ...], sloppy: bool, fake: bool
) -> Any:  # noqa: ANN401
    """Mount SOURCE on MNT for mount(8); see aisfs-mount(8). The SOURCE `aisfs` is every bucket."""
    arguments = [word for option in options for word in ("-o", option)]
    arguments += ["--sloppy"] * sloppy + ["--fake"] * fake
    sources = [] if source == _EVERY_BUCKET else [source]
    return mount.main(
        [*arguments, "--", *sources, mountpoint], prog_name="aisfs mount", standalone_mode=False
    )


def mount_status(code: int) -> int:
    """Return the exit code of mount(8) for one of ours."""
    if code == Exit.OK:
        return 0
    return _WRONG_CALL if code == Exit.USAGE else _MOUNT_FAILED
