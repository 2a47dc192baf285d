"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Whether something has to be done."""

    OK = "ok"
    NOTE = "note"
    """It works, but could be better."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    found: str
    cure: str = ""
    """What to do; empty if nothing."""


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing to do."""
    return Check(name, State.OK, found)


def note(name: str, found: str, cure: str) -> Check:
    """Return a check that found something that could be better."""
    return Check(name, State.NOTE, found, cure)


def wrong(name: str, found: str, cure: str) -> Check:
    """Return a check that found something wrong."""
    return Check(name, State.WRONG, found, cure)
