"""How many files and sockets this process may have open."""

import resource

WANTED = 1 << 16
"""More than 32 requests at once to each of 1,000 targets; bounded, as each costs the kernel memory."""


def allow_many() -> None:
    """Raise the limit as far as useful and permitted: the usual 1,024 is a limit of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allowed() -> int:
    """Return the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
