"""Where a process starts: `imagebuilder`, `python -m imagebuilder`."""

import signal

# While the first modules are imported, nothing has been begun that must be ended in order: Ctrl-C ends it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Run the command line."""
    from imagebuilder.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
