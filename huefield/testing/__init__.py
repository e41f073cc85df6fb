"""Conformance kit: checks that noise models and ensembles must pass, ours or your own.

    from huefield.testing import check_ensemble, check_noise
    check_noise(MyNoise.Config().build(), key=jax.random.key(0))
    check_ensemble(ensemble, structures)

Each check raises ``AssertionError`` with the difference it found.
"""

from huefield.testing.ensemble import check_ensemble as check_ensemble
from huefield.testing.noise import check_noise as check_noise
from huefield.testing.probes import LocalProbe as LocalProbe
from huefield.testing.probes import ProbePotential as ProbePotential
from huefield.testing.probes import cast_floats as cast_floats
from huefield.testing.probes import flatten as flatten
from huefield.testing.probes import probe_graph as probe_graph
