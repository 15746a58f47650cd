"""The exception for invalid user input."""

LONGEST = 1000  # characters per message


class InputError(ValueError):
    """Invalid user input: one line with the rule, what was found and how to fix it.

    Commands print the line and exit with status 2; any other exception is a bug in this project.
    The text may quote arbitrary input, so runs of whitespace become single spaces, unprintable
    characters become escapes, and the middle of a long text is left out.
    """

    def __init__(self, text: str):
        line = printable(" ".join(text.split()))
        if len(line) > LONGEST:
            half = LONGEST // 2
            line = f"{line[: half - 3]} ... {line[2 - half :]}"
        super().__init__(line)


def printable(text: str) -> str:
    """Escape unprintable characters, such as terminal control codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
