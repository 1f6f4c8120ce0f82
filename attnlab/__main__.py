"""`python -m attnlab`, and the command `attnlab`."""

import signal
import sys

from attnlab import WINDOWS


def main() -> None:
    if sys.platform == "win32":
        print(f"error: {WINDOWS}", file=sys.stderr)
        sys.exit(2)
    # before anything else and after all: no traceback of Python's own, just an end
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnlab import stop

    with stop.ending():  # a signal while all the rest is being imported, too
        from attnlab import cli

        cli.main()


if __name__ == "__main__":
    main()
