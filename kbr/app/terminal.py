"""How commands end and speak: one line, an exit code, and no traceback for what is the user's."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import NoReturn

import kbr
from kbr.core.errors import KbrError

CTRL_C = 130  # exit code: 128 + SIGINT
PIPE_CLOSED = 141  # exit code of a command whose reader has gone: 128 + SIGPIPE


def piped(command: Callable[[], None]) -> None:
    """Run a command; a reader that leaves early (`| head`) ends it without a word."""
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(PIPE_CLOSED) from None


def version_line() -> str:
    return f"kbr {kbr.__version__} (torch {version('torch')})"


def stop(message: str) -> NoReturn:
    """End with one clear message and exit code 2."""
    sys.stderr.write(f"kbr: {message}\n")
    raise SystemExit(2)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """An error of kbr ends the command with its line."""
    try:
        yield
    except KbrError as error:
        stop(str(error))


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is one line and exit code 130; the exception may say how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"\nkbr: {' '.join(['stopped by Ctrl-C.', *map(str, interrupt.args)])}\n")
        raise SystemExit(CTRL_C) from None
