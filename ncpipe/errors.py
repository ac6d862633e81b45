"""The one exception that is shown to the user as a single line instead of a traceback."""


class InputError(ValueError):
    """A mistake in what ncpipe was given; the message names the key or file and says what to do."""
