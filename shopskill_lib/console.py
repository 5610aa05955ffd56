"""How commands talk: the answer on standard output, an error as one message on standard error.

Exit codes: 0 done, 2 refused, 75 stopped on request and to be continued by the same command, 130 stopped by hand.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shopskill_lib.errors import Interrupted, OutputError, ParameterError, ShopskillError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are of our tree: one message."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage over several lines."""
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise ParameterError(message, where="command line", allowed=usage, todo=f"see {self.prog} --help")


def respond(parser: Parser, arguments: Sequence[str] | None = None) -> int:
    """Run the parsed command, whose default `command` returns its answer as text, and return the exit code."""
    try:
        options = parser.parse_args(arguments)
        say(options.command(options))
    except ShopskillError as error:
        sys.stderr.write(f"shopskill: {error}\n")
        return 75 if isinstance(error, Interrupted) else 2
    except KeyboardInterrupt:
        sys.stderr.write("shopskill: stopped\n")
        return 130
    return 0


def say(text: str) -> None:
    """Print an answer or a line of it; a reader that stops early (`| head`) is no error, a full disk is one."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"the answer cannot be written ({error.strerror})",
                where="standard output",
                allowed="a place with space that you may write",
                todo="free some space, or write elsewhere",
            ) from error
