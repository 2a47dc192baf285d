"""Numbers as people read them: sizes in KiB, MiB and GiB, and how long something took, how many there are."""

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """Return a number of bytes in the largest unit that it fills once."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in _UNITS:
        size /= 1024
        if size < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{size:,.1f} {unit}"


def duration_text(seconds: float) -> str:
    """Return a time in its two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, which is a plural unless it is one."""
    ending = "" if count == 1 else "es" if noun.endswith("x") else "s"
    return f"{count:,} {noun}{ending}"
