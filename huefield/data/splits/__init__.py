"""Splits into training, validation and test data, and a check that they share no configuration."""

from huefield.data.splits.config import SplitConfig as SplitConfig
from huefield.data.splits.config import SplitInputs as SplitInputs
from huefield.data.splits.files import split_from_file as split_from_file
from huefield.data.splits.splits import Split as Split
