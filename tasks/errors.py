"""The exception for invalid user input, and the warning for what is not used of it."""


class InputError(ValueError):
    """Invalid user input: one line with the rule, what was found and how to fix it.

    Commands print the line and exit with status 2; any other exception is a bug.
    """

    def __init__(self, text: str):
        super().__init__(printable(" ".join(text.split())))


class InputWarning(UserWarning):
    """Something is not used, or not done, as the user asked; commands print it as a note."""


def printable(text: str) -> str:
    """Escape unprintable characters, such as terminal control codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
