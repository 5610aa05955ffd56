"""The `shopskill` command: the module of a command takes this process over, signals and all; no other is imported."""

import os
import sys
from typing import NoReturn

OWN = ("run", "doctor", "pool", "rank")
"""Commands with a module of their own; `cli` has the others, and the list of all."""


def main() -> NoReturn:
    """Become the command; its exit code is that of the process."""
    words = sys.argv[1:]
    module = words.pop(0) if words and words[0] in OWN else "cli"
    os.execv(sys.executable, [sys.executable, "-m", f"shopskill_lib.{module}", *words])


if __name__ == "__main__":
    main()
