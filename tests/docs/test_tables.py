"""Tables of the documents that are made from the code say what it does."""

import inspect
from pathlib import Path

import pytest

from aisfs import errors
from aisfs.errors import AisfsError
from aisfs.filesystem.errnos import ERRNOS
from tests.docs.tables import TABLES, with_tables

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


@pytest.mark.parametrize("document", TABLES, ids=lambda document: document.name)
def test_tables_are_those_of_the_code(document: Path):
    assert document.read_text() == with_tables(document), "run: python -m tests.docs.tables"


def test_every_error_has_an_errno_of_its_own():
    tree = {
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, AisfsError) and cls is not AisfsError
    }
    assert {cls.__name__ for cls in tree - ERRNOS.keys()} == OF_COMMANDS
