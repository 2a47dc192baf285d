"""The options behind `-o` of `aisfs mount`, as mount(8) and fstab write them, and those without a value."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from aisfs.errors import ConfigError

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
