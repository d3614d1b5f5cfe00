"""The one exception that reaches a user: what was wrong, and what to type next.

    OnecardError
    ├── UserError     a mistake the user can fix: exit code 2, one sentence, a hint
    ├── RunFailure    the run could not continue (disk, data, card): exit code 1, what was saved
    └── InternalError a bug in onecard: exit code 70, what was saved, and where its traceback is

>>> raise UserError("unknown GPU '4071'", hint="did you mean RTX 4070? `onecard gpus` lists them all")
Traceback (most recent call last):
    ...
onecard.errors.UserError: unknown GPU '4071' (did you mean RTX 4070? `onecard gpus` lists them all)
"""

from collections.abc import Iterable


class OnecardError(Exception):
    """Base of all errors that are shown as a sentence, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(OnecardError):
    """Something the user typed or gave cannot be used."""

    exit_code = 2


class RunFailure(OnecardError):
    """The work itself could not continue; the message says what is safe."""


class InternalError(OnecardError):
    """Something that should not happen did; the message says what is safe, the hint where to look."""

    exit_code = 70  # EX_SOFTWARE


def first_line(error: BaseException) -> str:
    """What an exception says, in one line; its kind where it says nothing.

    >>> first_line(ValueError("\\n too long\\nby far")), first_line(ValueError())
    ('too long', 'ValueError')
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:160]


def nearest(word: str, known: Iterable[str]) -> str:
    """The names closest to `word`, ready for a hint: "did you mean n_layer or n_head?"; "" when none is close."""
    import difflib  # only where somebody mistyped

    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""
