"""The options behind `-o` of `aisfs mount`, as mount(8) and fstab write them."""

import re
from collections import defaultdict
from collections.abc import Collection

from aisfs.errors import ConfigError

# What fstab and mount(8) add and aisfs has no use for; the second set goes to the kernel.
_IGNORED = frozenset(
    {"defaults", "ro", "auto", "noauto", "user", "nouser", "users", "_netdev", "nofail", "noatime"}
)
_COMMA = re.compile(r"(?<!\\),")
_KERNEL = frozenset(
    {"allow_other", "allow_root", "nonempty", "dev", "nodev", "suid", "nosuid", "exec", "noexec"}
)


def sort_options(
    given: tuple[str, ...],
    settings: Collection[str],
    flags: Collection[str] = (),
    lists: Collection[str] = (),
) -> tuple[set[str], dict[str, object]]:
    """Separate the kernel's options from those of aisfs, which fstab can only write behind -o.

    A comma within a value is written `\\,`, as in libfuse.

    Args:
        given: The value of each -o.
        settings: Names of the options of aisfs that take a value.
        flags: Names of those that need none.
        lists: Names of those that may be repeated.

    Returns:
        Options for the kernel, and values by name of the option of aisfs.

    Raises:
        ConfigError: the option is unknown.
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
            named[name] = True
        elif word == "rw":
            kernel.add(word)
        elif word and word not in _IGNORED and not word.startswith("x-"):
            raise ConfigError(f"-o {option.strip()}: unknown mount option")
    return kernel, {**named, **{name: tuple(values) for name, values in listed.items()}}
