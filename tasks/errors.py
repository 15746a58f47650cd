"""The one exception for what a person gave wrong."""

LONGEST = 1000  # characters of a message


class InputError(ValueError):
    """Bad input from the user: one line that says the rule, what was found and what to do.

    Commands print its text and exit with status 2; any other exception is a defect of this project.
    What was found may be anything: blanks and line breaks become one blank each, other characters
    that do not print their escapes, and of a long text the middle is left out.
    """

    def __init__(self, text: str):
        line = printable(" ".join(text.split()))
        if len(line) > LONGEST:
            half = LONGEST // 2
            line = f"{line[: half - 3]} ... {line[2 - half :]}"
        super().__init__(line)


def printable(text: str) -> str:
    """The text with escapes for what does not print, such as a terminal's control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
