"""Errors are copied for several waiters, whatever they are made of."""

import gc
import importlib
import json
import pkgutil
import sqlite3
import ssl
import weakref

import pytest
import urllib3.exceptions

import aisfs
from aisfs.csi.volumes import Code, VolumeError
from aisfs.errors import AisfsError, Stale, Unavailable, untraced
from aisfs.http.exchange import SpeaksTls
from aisfs.server.api.s3 import S3Error
from aisfs.server.failures import Failure
from tests.support.for_each import for_each


def kinds_of(base: type[Exception]) -> set[type[Exception]]:
    return {base}.union(*(kinds_of(kind) for kind in base.__subclasses__()))


for _module in pkgutil.walk_packages(aisfs.__path__, "aisfs."):
    if "__main__" not in _module.name:
        importlib.import_module(_module.name)
OWN_CONSTRUCTORS = {
    VolumeError: VolumeError(Code.INTERNAL, "text"),
    Failure: Failure(503, "text", "tcode", headers=[("a", "b")]),
    S3Error: S3Error(503, "SlowDown", "text"),
}
OURS = [
    OWN_CONSTRUCTORS.get(kind) or kind("text")
    for kind in sorted(kinds_of(AisfsError), key=str)
    if kind.__module__.startswith("aisfs.")
]


def failed(call, *args) -> Exception:
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it did not fail")


def annotated() -> Exception:
    error = Unavailable("text")
    error.pause = 3.0
    error.transient = False
    error.add_note("a note")
    return error


OTHERS = [
    annotated(),
    SpeaksTls(),
    ssl.SSLError(1, "text"),
    OSError("text"),
    OSError(28, "no room", "/a"),
    OSError(18, "another device", "/a", None, "/b"),
    failed(open, "/there is no such file"),
    failed(b"\xff".decode),
    failed(json.loads, "{"),
    failed(importlib.import_module, "there_is_no_such_module"),
    failed(sqlite3.connect(":memory:").execute, "nonsense"),
    failed(lambda: {}["key"]),
    urllib3.exceptions.MaxRetryError(None, "http://host", OSError("text")),
    ExceptionGroup("several", [OSError("text"), Stale("text")]),
]


def raised(error: Exception) -> Exception:
    """Give an error the frames that it has where it is copied."""
    try:
        try:
            raise KeyError("the context")
        except KeyError as cause:
            raise error from cause
    except Exception as caught:  # noqa: BLE001 - whatever it is
        return caught


def told(error: Exception) -> tuple[object, ...]:
    fields = {name: getattr(error, name, None) for name in vars(type(error)) if name[0] != "_"}
    facts = ("errno", "strerror", "filename", "filename2", "reason", "name", "doc", "transient")
    fields |= {name: getattr(error, name, None) for name in facts}
    return type(error), str(error), repr(error), error.args, dict(vars(error)), str(fields)


@for_each("error", OURS + OTHERS)
def test_a_copy_says_the_same_and_holds_on_to_nothing(error: Exception):
    raised(error)
    before = told(error)
    for made in (untraced(error), untraced(untraced(error))):
        assert made is not error
        assert told(made) == before
        assert (made.__traceback__, made.__cause__, made.__context__) == (None, None, None)
        with pytest.raises(type(error)):
            raise made
    assert told(error) == before
    assert error.__traceback__ is not None


def test_the_copy_frees_what_the_frames_and_the_error_held():
    class Buffer:
        pass

    def fill():
        buffer = Buffer()
        seen.append(weakref.ref(buffer))
        raise VolumeError(Code.INTERNAL, "text")

    def ask():
        buffer = Buffer()
        seen.append(weakref.ref(buffer))
        buffer.nothing  # noqa: B018 - the error has the object

    seen = []
    kept = [untraced(failed(call)) for call in (fill, ask)]
    gc.collect()
    assert [held() for held in seen] == [None, None]
    assert [str(error) for error in kept] == ["text", "'Buffer' object has no attribute 'nothing'"]


def test_what_only_its_extension_makes_is_the_same_object_without_frames():
    pydantic = pytest.importorskip("pydantic")
    error = failed(pydantic.TypeAdapter(int).validate_python, "x")
    assert isinstance(error, pydantic.ValidationError)
    assert untraced(error) is error
    assert error.__traceback__ is None
