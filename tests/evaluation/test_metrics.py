import numpy as np
import pytest
from scipy.stats import norm

from huefield.evaluation import gaussian_nll, rmse


def test_rmse_by_hand() -> None:
    assert rmse([3.0, -4.0]) == pytest.approx(np.sqrt(12.5))


def test_nll_is_scipys() -> None:
    rng = np.random.default_rng(0)
    error, sigma = rng.standard_normal(50), rng.uniform(0.1, 2.0, 50)
    assert gaussian_nll(error, sigma**2) == pytest.approx(-norm(0, sigma).logpdf(error).mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("error", "variance", "message"),
    [
        ([], [], "the array is empty"),
        ([1.0, np.nan], [1.0, 1.0], "error must be finite, but is nan at index 1"),
        ([1.0, 2.0], [1.0, 0.0], "variance must be positive, but is 0.0 at index 1"),
        ([1.0, 2.0], [1.0], r"variance must have shape \(2\), but has shape \(1,\)"),
    ],
)
def test_bad_input_is_named(error: list[float], variance: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gaussian_nll(error, variance)
