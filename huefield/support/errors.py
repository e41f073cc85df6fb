"""The base class of errors that a user can mend."""


class HuefieldError(ValueError):
    """Something is wrong with what a user gave: the message says what, where, and what to do.

    The command line shows such an error as one line. Any other exception is a bug of huefield and shows its traceback.
    """
