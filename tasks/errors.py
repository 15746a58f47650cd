"""The one exception for what a person gave wrong."""


class InputError(ValueError):
    """Bad input from the user: one line that says the rule, what was found and what to do.

    Commands print its text and exit with status 2; any other exception is a defect of this project.
    """
