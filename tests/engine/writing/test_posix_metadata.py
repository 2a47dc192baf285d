"""Modes, times and links as other clients may have written them."""

from aisfs.model import ObjectInfo
from aisfs.stores.posix_metadata import LINK, MODE, is_link, mode_of, with_posix_metadata, with_type
from tests.support.for_each import for_each


@for_each(
    "text, size, mode",
    [
        ("644", 5, 0o644),
        ("100644", 5, 0o644),
        ("4755", 5, 0o755),
        ("120777", 5, LINK),
        ("120644", 5, LINK),
        ("120777", 0, 0o777),
        ("120777", 4096, 0o777),
        ("40755", 5, 0o755),
        ("60660", 5, 0o660),
        ("x", 5, None),
        ("", 5, None),
        ("9", 5, None),
    ],
)
def test_what_is_stored_as_a_mode_is_a_file_or_a_link(text: str, size: int, mode: int | None):
    info = ObjectInfo("k", size, custom={MODE: text})
    assert mode_of(info) == mode
    assert is_link(info) == (mode == LINK)


def test_a_link_stays_one_when_its_time_is_set():
    custom = with_posix_metadata({}, mtime_ns=1, mode=LINK)
    assert custom[MODE] == "120777"
    again = with_posix_metadata(custom, mtime_ns=2, mode=mode_of(ObjectInfo("k", 5, custom=custom)))
    assert is_link(ObjectInfo("k", 5, custom=again))


def test_the_type_that_stat_shows():
    assert with_type(LINK) == 0o120777
    assert with_type(0o640) == 0o100640
