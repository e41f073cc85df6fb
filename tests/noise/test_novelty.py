"""Noise that grows with the distance to the training data."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from huefield.core import Graph, Partition
from huefield.noise import novelty
from huefield.noise.novelty import GROWTH, SOFTNESS, Growth, Novelty


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def atoms(count: int, *, seed: int, shift: float = 0.0, features: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Atomic numbers of H and C, and features of another distribution for each."""
    rng = np.random.default_rng(seed)
    numbers = rng.choice([1, 6], count)
    scale = np.where(numbers == 1, 1.0, 3.0)[:, None]
    return numbers, scale * (rng.normal(size=(count, features)) + shift)


def graph_with(numbers: np.ndarray) -> Graph:
    return Graph(jnp.zeros((len(numbers), 3)), jnp.asarray(numbers), Partition.from_sizes([len(numbers)]))


@pytest.fixture(scope="module")
def fitted() -> Novelty:
    with jax.enable_x64(True):
        return Novelty.fitted(*atoms(300, seed=0), *atoms(200, seed=1))


def levels(found: Novelty, numbers: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Factors of the noise levels."""
    return np.asarray(found.growth(jnp.asarray(features), graph_with(numbers)))[:, 0]


def distances(found: Novelty, numbers: np.ndarray, features: np.ndarray) -> np.ndarray:
    return np.sqrt(np.asarray(found.squared_distances(jnp.asarray(features), jnp.asarray(numbers))))


def test_distances_are_those_to_points_of_the_same_element(fitted: Novelty) -> None:
    numbers, features = atoms(20, seed=2, shift=0.5)
    found = distances(fitted, numbers, features) ** 2
    begins = np.cumsum([0, *fitted.config.points])
    for index, (number, feature) in enumerate(zip(numbers, features, strict=True)):
        element = fitted.config.numbers.index(int(number))
        place = (feature - np.asarray(fitted.centres)[element]) @ np.asarray(fitted.axes)[element]
        points = np.asarray(fitted.points)[begins[element] : begins[element + 1]]
        squares = np.sum((points - place) ** 2, axis=1)
        weights = np.exp(-(squares - squares.min()) / SOFTNESS)
        assert found[index] == pytest.approx(float(weights @ squares / weights.sum()), rel=1e-8)
        assert found[index] >= squares.min()


def test_noise_of_validation_data_stays_what_it_was_on_average(fitted: Novelty) -> None:
    numbers, features = atoms(200, seed=1)
    growth = levels(fitted, numbers, features)
    assert np.exp(np.mean(np.log(growth))) == pytest.approx(1.0, rel=1e-9)


def test_noise_is_flat_near_the_data_and_grows_with_a_power_of_large_distances() -> None:
    near, far = np.array([0.0, 0.5, 1.0]), np.array([100.0, 200.0])
    np.testing.assert_allclose(GROWTH(jnp.asarray(near)), 1.0, atol=2e-3)
    grown = np.asarray(GROWTH(jnp.asarray(far)))
    assert grown[1] / grown[0] == pytest.approx(2 ** (4 / 3), rel=0.02)
    assert np.all(np.diff(GROWTH(jnp.linspace(0.0, 1e6, 1000))) > 0)


def test_files_of_version_6_keep_their_growth() -> None:
    squares = np.array([0.1, 1.5, 30.0, 1e5, 1e7])
    expected = np.sqrt(1 + (squares / (1 + squares / 1e6) / 1.5) ** 2)
    np.testing.assert_allclose(Growth()(jnp.asarray(squares)), expected, rtol=1e-12)
    assert Growth().rest_power == 1.0


def test_growth_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"power 1 and the sharpness 8 up to d² = 1e\+06 is not finite"):
        Growth(sharpness=8.0)


def test_growth_is_that_of_the_distances(fitted: Novelty) -> None:
    numbers, features = np.array([1, 1, 1]), np.array([[1.0], [10.0], [20.0]]) * np.ones((1, 5))
    growth = np.asarray(fitted.growth(jnp.asarray(features), graph_with(numbers)))
    expected = np.asarray(GROWTH(jnp.asarray(distances(fitted, numbers, features) ** 2))) / float(fitted.usual)
    np.testing.assert_allclose(growth[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(growth[:, 1], np.sqrt(expected), rtol=1e-6)
    assert growth[1, 0] > 50 * growth[0, 0]


def test_growth_has_a_bound(fitted: Novelty) -> None:
    growth = fitted.growth(jnp.full((1, 5), 1e30), graph_with(np.array([1])))
    assert np.isfinite(growth).all()
    single = jax.tree.map(lambda leaf: leaf.astype("float32"), fitted)
    assert np.isfinite(single.growth(jnp.full((1, 5), 1e30, "float32"), graph_with(np.array([1])))).all()
    gradient = jax.grad(lambda x: fitted.growth(x, graph_with(np.array([1])))[0, 0])(jnp.full((1, 5), 1e12))
    assert np.isfinite(gradient).all()


def test_other_elements_and_padding_keep_their_noise(fitted: Novelty) -> None:
    growth = fitted.growth(jnp.full((3, 5), 7.0), graph_with(np.array([8, 0, 1])))
    np.testing.assert_array_equal(growth[:2], 1.0)
    assert np.all(growth[2] > 1)


def test_many_atoms_are_taken_in_chunks(fitted: Novelty, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, features = atoms(50, seed=3)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(fitted.growth(x, graph_with(numbers)))

    whole = jax.value_and_grad(total)(jnp.asarray(features))
    monkeypatch.setattr(novelty, "MOST_PAIRS", 16 * 300)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10),
        jax.value_and_grad(total)(jnp.asarray(features)),
        whole,
    )


def test_many_points_are_represented_by_centres_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(novelty, "MOST_POINTS", 20)
    found = Novelty.fitted(*atoms(500, seed=0), *atoms(200, seed=1))
    assert found.config.points == (20, 20)
    assert found.points.shape == (40, 5)
    far, near = (distances(found, *atoms(100, seed=4, shift=shift)).mean() for shift in (4.0, 0.0))
    assert far > 2 * near


def test_copies_in_the_validation_data_do_not_make_everything_new() -> None:
    training = atoms(300, seed=0)
    found = Novelty.fitted(*training, *training)
    assert np.median(distances(found, *atoms(100, seed=5))) < 200
    assert np.isfinite(found.growth(jnp.asarray(training[1]), graph_with(training[0]))).all()


@pytest.mark.parametrize("spread", [0.0, 1e-7])
def test_an_element_with_equal_surroundings_is_not_far_from_itself(spread: float) -> None:
    """Rounding is no variance."""
    numbers, features = atoms(300, seed=0)
    oxygens = 1.0 + spread * np.random.default_rng(0).normal(size=(7, 5))
    found = Novelty.fitted(np.append(numbers, [8] * 7), np.vstack([features, oxygens]), *atoms(200, seed=1))
    near = np.array([[1.0], [1.001]]) * np.ones((1, 5))
    growth = np.asarray(found.growth(jnp.asarray(near), graph_with(np.array([8, 8]))))
    assert np.all(growth < 2)


def test_an_element_without_validation_data_takes_the_unit_of_the_others() -> None:
    numbers, features = atoms(200, seed=1)
    found = Novelty.fitted(*atoms(300, seed=0), numbers[numbers == 1], features[numbers == 1])
    median = np.median(distances(found, numbers, features)[numbers == 6])
    assert 0.3 < median < 3


def test_a_single_atom_of_an_element_has_a_distance() -> None:
    numbers, features = atoms(300, seed=0)
    with_oxygen = np.append(numbers, 8), np.vstack([features, np.ones(5)])
    found = Novelty.fitted(*with_oxygen, *atoms(200, seed=1))
    near, far = distances(found, np.array([8, 8]), np.array([[1.0], [2.0]]) * np.ones((1, 5)))
    assert near == pytest.approx(0.0, abs=1e-6)
    assert np.isfinite(far)
    assert far > 0
