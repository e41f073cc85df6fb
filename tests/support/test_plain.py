import numpy as np

from huefield.support.plain import rounded


def test_numbers_are_rounded_wherever_they_stand() -> None:
    given = {"a": np.array([1.23456, np.nan]), "b": (2, 0.000123456), "c": {"d": 98765.4}, "e": "text"}
    assert rounded(given, 3) == {"a": [1.23, None], "b": [2, 0.000123], "c": {"d": 98800.0}, "e": "text"}
