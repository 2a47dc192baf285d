"""The command line of the demo and what its end looks like."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.interruptions import Interrupted, Interrupts
from demo.failures import DemoError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and give its exit code."""
    options = _parser().parse_args(arguments)
    interruptions = Interrupts()
    interruptions.begin()
    try:
        from demo.story import play  # loads for a second, in which Ctrl-C should be as silent

        play(options, interruptions)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    except Interrupted as interruption:
        print(f"demo: stopped by {interruption}; everything is cleaned up", file=sys.stderr)
        return interruption.exit_code
    except BrokenPipeError:  # nobody reads on, as in `make demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="Show what aisfs does, on this machine alone."
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="use the pictures in DIR; a folder is a class"
    )
    parser.add_argument(
        "--source", metavar="URL", help="mount this instead: https://…, hf://…, a directory"
    )
    parser.add_argument(
        "--pictures", type=_positive, default=120, metavar="N", help="how many to draw [120]"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the last mount and the server for a look around"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
