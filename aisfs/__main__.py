"""`aisfs` and `python -m aisfs`."""

from aisfs.system.daemon import loading


def main() -> None:
    """Load the command line and run it; ends the process."""
    with loading():
        from aisfs.commands.main import main as run
    run()


if __name__ == "__main__":
    main()
