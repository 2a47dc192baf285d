"""`aisfs mount`: its options, those behind `-o` as mount(8) and fstab write them, and `mount.aisfs`.

That helper is what mount(8) runs for `mount -t aisfs` and for lines of `/etc/fstab`. It is a link to the program, so it
finds the program wherever that is installed.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any

import click

from aisfs.commands.guide import Documented, complete_place, help_all_option
from aisfs.commands.options import (
    Exit,
    config_option,
    own_option,
    settings,
    start_logging,
    with_switched_off,
    without_unset,
)
from aisfs.errors import ConfigError
from aisfs.settings.values import KNOWN, Group
from aisfs.system.daemon import loading

# What fstab and mount(8) add and aisfs has no use for; the second set goes to the kernel.
# fmt: off
_IGNORED = frozenset({
    "defaults", "ro", "auto", "noauto", "nofail", "_netdev", "_rnetdev", "comment", "async", "user", "nouser", "users",
    "nousers", "owner", "noowner", "group", "nogroup", "atime", "noatime", "diratime", "nodiratime", "relatime",
    "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime",
})
# fmt: on
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
            near = get_close_matches(name, [*settings, *flags, *_KERNEL, *_IGNORED], 1)
            meant = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise ConfigError(f"-o {word}: unknown mount option{meant}")
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


_BARE = {
    f"--{name.replace('_', '-')}": (option.kind.show(option.bare), option.kind.words)
    for name, option in KNOWN.items()
    if option.bare
}
"""Options that may go without their value: which one is meant then, and all there are."""


_IN_ORDER = sorted(KNOWN.values(), key=lambda option: ([*Group].index(option.group), option.rare))
"""By group, and in each the rare ones last."""


_WORDS = "aisfs.words"
"""Where a context has the arguments as they were typed."""


class _Mount(Documented):
    """A command whose options in `_BARE` may go without their values."""

    hides_rare = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = [*args]
        return super().parse_args(ctx, with_values(args, _BARE))


@click.command(
    cls=_Mount,
    options_metavar="[OPTIONS]",
    epilog=f"Environment: {', '.join(o.variable for o in KNOWN.values() if o.variable)}, as for the ais CLI.",
)
@click.argument("where", nargs=-1, metavar="[SOURCE…] MNT", shell_complete=complete_place)
@settings(*(option.name for option in _IN_ORDER if option.typed))
@click.option("--no-lane", is_flag=True, default=None, hidden=True)
@own_option(
    "--allow-other",
    "Give other users access.",
    "unless root mounts, `/etc/fuse.conf` must contain `user_allow_other`",
    envvar="AISFS_ALLOW_OTHER",
)
@own_option("-f, --foreground", "Stay in the foreground, and log to stderr.")
@own_option(
    "-o OPT[,OPT]",
    "Options of mount(8), and the options above as name=value.",
    "see below",
    name="options",
    multiple=True,
)
@click.option("--sloppy", is_flag=True, hidden=True)
@click.option("--fake", is_flag=True, hidden=True)
@click.option("--takeover", type=int, hidden=True)
@config_option
@help_all_option
@click.pass_context
def mount(
    ctx: click.Context,
    /,
    where: tuple[str, ...],
    options: tuple[str, ...],
    foreground: bool,
    allow_other: bool,
    sloppy: bool,
    fake: bool,
    takeover: int | None,
    config: Path | None,
    **typed: object,
) -> int:
    """Mount SOURCE on the directory MNT.

    SOURCE is ais://BUCKET, ais://BUCKET/PREFIX/ or a local directory. Without SOURCE, every bucket
    of the cluster appears at MNT/PROVIDER/BUCKET. Several sources, shards as in
    'ais://pets/samples-{00..18}.tar' or 'shards/*.tar', or --view show the shards as one dataset.
    @NAME makes the mount that the configuration file describes under that name. The command returns
    when the mount is ready; with --view class or flat, that is when all shards are open.
    """
    with loading():  # --help and completion do not need it
        from aisfs.commands import mount_start
        from aisfs.commands.config import expand_profile
        from aisfs.commands.mount_start import Given
        from aisfs.mount import run as mounts
        from aisfs.mount.setup import load, mount_setup
        from aisfs.settings import LogSettings, use_file
        from aisfs.system.keeping import take_over

    def asked() -> Given:
        if not where:
            raise click.UsageError("expected [SOURCE…] MNT")
        _, said = _sort(options, typed, sloppy=sloppy)
        file = Path(str(said.pop("config"))) if "config" in said else config
        use_file(file)
        profile = where[0][1:] if where[0].startswith("@") else None
        places, words, described = expand_profile(where, options)
        kernel, named = _sort(words, typed, sloppy=sloppy)
        set_here = without_unset(typed)
        own = {**named, **set_here}
        named = {**described, **named}
        named.pop("config", None)
        kernel |= {"allow_other"} if named.pop("allow_other", None) or allow_other else set()
        given = with_switched_off({**named, **set_here})
        *sources, mountpoint = places
        if ("://" in mountpoint or mountpoint.startswith("@")) and not Path(mountpoint).is_dir():
            raise click.UsageError(_without_mountpoint(sources, mountpoint))
        setup = mount_setup(sources, Path(mountpoint), kernel, given)
        view = mount_start.what_is_shown(setup, given)
        return Given(setup, own, profile, load(LogSettings, given), file, view)

    if takeover is not None:
        return mount_start.go_on(take_over(takeover), asked, foreground=foreground)
    given = asked()
    mounts.check(given.setup)
    if fake:
        return Exit.OK
    own_log = start_logging(given.logs, foreground=foreground, mountpoint=given.setup.mountpoint)
    words = ctx.meta[_WORDS]
    if foreground:
        return mount_start.run_in_foreground(given, words)
    return mount_start.run_in_background(given, words, own_log)


def _without_mountpoint(words: Sequence[str], last: str) -> str:
    """Return what is wrong with a line that ends with a source."""
    if not words:
        return f"expected [SOURCE…] MNT: which directory is {last} to be mounted on?"
    if len(words) == 1 and "://" not in words[0]:
        return f"SOURCE comes first: aisfs mount {quote(last)} {quote(words[0])}"
    return f"the last word is the directory to mount on, and {last} is a SOURCE"


def _sort(
    options: tuple[str, ...], settings: Mapping[str, object], *, sloppy: bool
) -> tuple[set[str], dict[str, object]]:
    """Sort the values of -o into options of mount(8) and our own; see `sort_options`."""
    ours = [o for o in mount.params if o.name in (*settings, "config")]
    flags: dict[str, object] = {
        o.name: True for o in ours if isinstance(o, click.Option) and o.is_flag and o.name
    }
    flags |= {name: o.kind.show(o.bare) for name, o in KNOWN.items() if o.bare}
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
