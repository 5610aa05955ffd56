"""The errors of shopskill, one page.

    ShopskillError          base: every message says what was found, where, what is allowed, what to do
    ├── InputError          a file, column, row or value that cannot be used as it is
    ├── DesignError         masks under which the effects cannot be told apart
    ├── MissingError        pairs that are missing in a way METHOD M20 does not admit
    ├── ParameterError      a parameter or option of an unknown name, a wrong type or a value out of range
    ├── LookError           a further look at data that has been used once (METHOD M23)
    ├── FirewallError       something that only the audit may hold, stopped at a writer (M11)
    ├── NotebookError       a notebook that stopped at an error
    ├── SetupError          a model or shop that does not work as it was set up; nothing more is run
    ├── InfrastructureError a failure of network or server; its episode stays owed and is never scored (I20)
    ├── AuthorError         an author model whose answer stays invalid after its bounded repairs
    ├── Interrupted         a run that was asked to stop; what was finished is kept (exit code 75)
    └── OutputError         a place that cannot be written

A bad set-up is an exception of this tree; a bad rollout is data and never raises.
"""

from functools import partial
from typing import Any


class ShopskillError(Exception):
    """Base of all errors that a user can mend.

    Args:
        found: what was found, as a full clause ("task 30 has a mask of 15 characters").
        where: the file, column, row or parameter it was found in.
        allowed: what would have been accepted.
        todo: what the user can do about it.
    """

    def __init__(self, found: str, *, where: str, allowed: str, todo: str) -> None:
        self.found, self.where, self.allowed, self.todo = found, where, allowed, todo
        super().__init__(f"{where}: {found}. Allowed: {allowed}. What to do: {todo}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let an error pass from a worker process to the one that reports it."""
        return partial(type(self), where=self.where, allowed=self.allowed, todo=self.todo), (self.found,)


class InputError(ShopskillError):
    """A file, column, row or value that cannot be used as it is."""


class DesignError(ShopskillError):
    """Masks under which the effects cannot be told apart (METHOD M20)."""


class MissingError(ShopskillError):
    """Pairs that are missing in a way METHOD M20 does not admit."""


class ParameterError(ShopskillError):
    """A parameter or option of an unknown name, a wrong type or a value out of range."""


class LookError(ShopskillError):
    """A further look at data that has been used once (METHOD M23)."""


class FirewallError(ShopskillError):
    """Something that only the audit may hold, stopped at a writer (M11)."""


class NotebookError(ShopskillError):
    """A notebook that stopped at an error; what was finished before it is kept."""


class OutputError(ShopskillError):
    """A place that cannot be written."""


class SetupError(ShopskillError):
    """A model or shop that does not work as it was set up; nothing more is run."""


class InfrastructureError(ShopskillError):
    """A failure of network or server; its episode stays owed and is never scored (I20)."""


class AuthorError(ShopskillError):
    """An author model whose answer stays invalid after its bounded repairs."""


class Interrupted(ShopskillError):  # noqa: N818 - being stopped is no error of anyone
    """A run that was asked to stop; what was finished is kept, and the same call goes on from there."""
