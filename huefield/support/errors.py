"""Errors that a user can fix, and the structures that no model can predict."""


class HuefieldError(ValueError):
    """Something is wrong with what a user gave: the message says what, where, and what to do.

    The command line shows such an error as one line. Any other exception is a bug of huefield and shows its traceback.
    """


class NoPredictionError(HuefieldError):
    """A structure cannot be predicted: atoms are too close or lost, or a number is NaN. In dynamics: an explosion."""
