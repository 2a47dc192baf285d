"""Which keys a glob means, and which directories it never leads into."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.sources import (
    SPECIAL,
    GlobPattern,
    KeyFilter,
    as_glob,
    is_glob,
    is_pattern,
    literal,
    marked,
)
from tests.support.for_each import for_each


@for_each(
    "pattern, meant, not_meant",
    [
        ("x-*.tar", ["x-1.tar", "x-.tar"], ["d/x-1.tar", "x-1.tar.gz", "y.tar"]),
        ("*/x.tar", ["a/x.tar", ".a/x.tar"], ["x.tar", "a/b/x.tar"]),
        ("**/x.tar", ["x.tar", "a/x.tar", "a/b/x.tar"], ["x.tar/y"]),
        ("a?[0-9].tar", ["ab1.tar"], ["a/1.tar", "abc.tar"]),
        ("a[*].tar", ["a*.tar"], ["ab.tar"]),
        ("!a", ["!a"], ["b"]),
        ("\udc80*", ["\udc80x"], ["x"]),
        ("a\n*", ["a\nb"], ["a"]),
    ],
)
def test_globs(pattern, meant, not_meant):
    glob = GlobPattern(pattern)
    assert [path for path in [*meant, *not_meant] if glob.matches(path)] == meant


NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: set(name) != {"."})
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(
    st.lists(st.one_of(NAMES, st.sampled_from(["*", "**", "a*", "?"])), min_size=1, max_size=4),
    PATHS,
)
def test_no_directory_of_a_match_is_passed_over(parts, path):
    glob = GlobPattern("/".join(parts))
    if glob.matches(path):
        directories = path.split("/")[:-1]
        for depth in range(1, len(directories) + 1):
            assert glob.enters("/".join(directories[:depth]) + "/")


def test_directories_that_cannot_match_are_not_entered():
    glob = GlobPattern("train-*/x.tar")
    assert glob.enters("train-1/")
    assert not glob.enters("val/")
    assert not glob.enters("train-1/deeper/")


@for_each(
    "include, exclude, wanted, unwanted",
    [
        ((), (), ["a", "a/b"], []),
        (("*.jpg",), (), ["a.jpg", "d/a.jpg"], ["a.png", "a.jpg2"]),
        (("train/*",), (), ["train/a", "train/d/b", "x/train/a"], ["a", "train"]),
        (("/train",), (), ["train/a", "train"], ["x/train/a"]),
        (("/train/",), (), ["train/a"], ["x/train/a"]),
        ((), ("*.html", "old"), ["a"], ["a.html", "d/b.html", "old/a", "x/old/y/z"]),
        (("a/**",), ("**/b.*",), ["a/c"], ["a/b.x", "b.x"]),
        (("{a,b}.tar",), (), ["a.tar", "d/b.tar"], ["c.tar"]),
    ],
)
def test_filters(include, exclude, wanted, unwanted):
    keys = KeyFilter(include, exclude)
    assert [key for key in [*wanted, *unwanted] if keys.wants(key)] == wanted


@given(st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2), PATHS)
def test_no_directory_of_a_wanted_key_is_passed_over(include, exclude, path):
    keys = KeyFilter((*include, *(f"/{name}/*" for name in include)), tuple(exclude))
    if keys.wants(path) and "/" in path:
        assert keys.enters(path.rpartition("/")[0] + "/")


def test_directories_in_which_nothing_can_be_included():
    keys = KeyFilter(("/train/*/x", "/{val,a/b}/y"))
    assert [d for d in ("train/", "train/1/", "val/", "a/") if keys.enters(d)] == [
        "train/", "train/1/", "val/", "a/",
    ]  # fmt: skip
    keys = KeyFilter(("/train/*/x",))
    assert not any(map(keys.enters, ("val/", "train/1/2/")))
    wanted = keys.below("top/")
    assert wanted("top/train/")
    assert wanted("top/train/1/x")
    assert not wanted("top/val/")


def test_what_is_a_glob():
    assert all(map(is_glob, ["*", "a?", "[a]"]))
    assert all(map(is_glob, ["{0..}", "a-{007..}.tar"]))
    assert not any(map(is_glob, ["a", "{a,b}", "a.tar", "{0..9}", "{a..}"]))


@for_each("first", ["0", "9", "00", "42", "099", "1990"])
def test_an_open_range_is_all_numbers_from_its_first_on(first: str):
    pattern = GlobPattern(f"a/s-{{{first}..}}.tar")
    numbers = {f"{number:0{width}}" for number in range(2100) for width in (1, 2, 3, 4, 5)}
    found = {number for number in numbers if pattern.matches(f"a/s-{number}.tar")}
    assert found == {f"{number:0{len(first)}}" for number in range(int(first), 2100)}
    assert pattern.enters("a/")
    assert not pattern.enters("b/")
    assert not pattern.matches("a/s-.tar")


def test_open_ranges_among_braces():
    pattern = GlobPattern("{a{00..},b{1..}}-{0..}")
    assert all(map(pattern.matches, ["a00-5", "b3-0"]))
    assert not any(map(pattern.matches, ["a0-5", "b0-1"]))


ODD_NAMES = st.text(st.sampled_from([*SPECIAL, "a", "1", "/", ".", "ü", "\udc80"]), min_size=1)


@given(ODD_NAMES)
def test_a_quoted_text_is_that_text(name):
    quoted = "".join(f"\\{c}" if c in SPECIAL else c for c in name)
    for start in ("", "ais://b/"):
        text = marked(start + quoted, lambda _: False)
        assert not is_pattern(text)
        assert literal(text) == start + name
        # In a glob, it is quoted for wcmatch.
        assert GlobPattern(as_glob(text)).matches(start + name)


@given(ODD_NAMES)
def test_what_exists_is_that_text(name):
    text = marked(name, lambda _: True)
    assert not is_pattern(text)
    assert literal(text) == name


@for_each(
    "text, there, pattern",
    [
        ("run[1]/x-{0..1}.tar", ["run[1]/"], "run[1]/x-{0..1}.tar"),
        ("ais://b/run[1]/{a}/*.tar", ["ais://b/run[1]/", "ais://b/run[1]/{a}/"], "ais://b/run[1]/{a}/*.tar"),
        ("ais://b/a/x[1].tar", ["ais://b/a/x[1].tar"], "ais://b/a/x[1].tar"),
        ("ais://b/a[1]", [], ""),
        ("a[1]/b[2]", ["b[2]"], ""),
        ("ais://{a,b}/x[1]", ["ais://{a,b}/x[1]"], ""),
        ("a\\b.tar", [], ""),
    ],
)  # fmt: skip
def test_each_directory_that_exists_is_meant_as_it_is_written(text, there, pattern):
    asked = []

    def exists(name):
        asked.append(name)
        return name in there

    found = marked(text, exists)
    assert literal(found) == (pattern or text)
    kept = next((part for part in reversed(there) if part == text[: len(part)] and pattern), "")
    assert is_pattern(found[len(kept) :]) == is_pattern(text[len(kept) :])
    assert not kept or not is_pattern(found[: len(kept)])
    assert all(name == text[: len(name)] for name in asked)
