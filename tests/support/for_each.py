"""One test over a table: each row is tried, and one message names all that fail.

`pytest.mark.parametrize` makes a test of each row, which costs some 5 ms and is collected by each
worker. It is for what a fixture makes anew; a table that only a function is tried with is `for_each`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Function = Callable[..., Any]
_FAILED = (Exception, pytest.fail.Exception)


def for_each(names: str, table: Iterable[Any]) -> Callable[[Function], Function]:
    """Call a test with each row of a table, a value or a tuple of as many as there are names."""
    words = [name.strip() for name in names.split(",")]
    found = [dict(zip(words, row if len(words) > 1 else [row], strict=True)) for row in table]
    assert found, "the table is empty"

    def decorate(test: Function) -> Function:
        @functools.wraps(test)
        def each(**fixtures: Any) -> None:
            failed = []
            for row in found:
                try:
                    test(**fixtures, **row)
                except _FAILED as error:
                    failed.append((row, error))
            _complain(failed, len(found))

        @functools.wraps(test)
        async def each_awaited(**fixtures: Any) -> None:
            failed = []
            for row in found:
                try:
                    await test(**fixtures, **row)
                except _FAILED as error:
                    failed.append((row, error))
            _complain(failed, len(found))

        chosen = each_awaited if inspect.iscoroutinefunction(test) else each
        signature = inspect.signature(test)
        left = [value for name, value in signature.parameters.items() if name not in words]
        chosen.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return chosen

    return decorate


def _complain(failed: list[tuple[dict[str, Any], BaseException]], count: int) -> None:
    if failed:
        lines = [f"{row!r:.300}: {type(error).__name__}: {error}" for row, error in failed]
        message = "\n\n".join([f"{len(failed)} of {count} rows fail", *lines])
        raise AssertionError(message) from failed[0][1]
