"""The tables of SEMANTICS say what the code does."""

import inspect

from aisfs import errors
from aisfs.errors import AisfsError
from aisfs.filesystem.errnos import ERRNOS
from tests.docs.documents import SEMANTICS
from tests.docs.tables import with_tables

OF_COMMANDS = {
    "ConfigError",
    "DaemonSilent",
    "FuseUnavailable",
    "IndexOutdated",
    "IndexRefused",
    "JobFailed",
    "JobNotFound",
    "MountError",
    "NoEndpoint",
    "SourceMissing",
}
"""What only a command can say; no request of the kernel ends in one."""


def test_tables_of_semantics_are_those_of_the_code():
    text = SEMANTICS.read_text()
    assert text == with_tables(text), "run: python -m tests.docs.tables"


def test_every_error_has_an_errno_of_its_own():
    tree = {
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, AisfsError) and cls is not AisfsError
    }
    assert {cls.__name__ for cls in tree - ERRNOS.keys()} == OF_COMMANDS
