"""Defaults that functions share with the command line, which shows them in its help without importing the library."""

BINS = 10
"""Number of bins of reliability diagrams and of force magnitudes."""
RESAMPLES = 200
"""Number of resamples for confidence intervals."""
FIT_FRACTION = 0.5
"""Share of the structures to which a calibration is fitted; the others are for the comparison."""
