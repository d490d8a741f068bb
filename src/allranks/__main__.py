"""``python -m allranks``, and the command ``allranks``: its start is imports, and Ctrl-C may come then, too."""

import sys

from allranks.interruption import interruptible


def main() -> int:
    """Run one command of this process's arguments; returns an exit code of the design."""
    try:
        with interruptible():
            from allranks import cli  # noqa: PLC0415 - not before an interrupt is heard

            return cli.main()
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
