"""YAML that people write, and YAML that grows."""

import time

import pytest

from huefield.support.errors import HuefieldError
from huefield.support.yamlfile import parse_yaml


def bomb(levels: int) -> str:
    """A list of nine of the list before, and so on: 9 to the power of ``levels`` values."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


def test_aliases_are_allowed() -> None:
    assert parse_yaml("a: &rate {learning_rate: 0.1}\nb: *rate", "x") == {"a": {"learning_rate": 0.1}} | {
        "b": {"learning_rate": 0.1}
    }


def test_aliases_that_multiply_are_refused_at_once() -> None:
    before = time.perf_counter()
    with pytest.raises(HuefieldError, match=r"the aliases \(\*name\) of c.yaml multiply to 5e\+08 values"):
        parse_yaml(bomb(9), "c.yaml")
    assert time.perf_counter() - before < 1.0


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 5000])
def test_endless_nesting_is_refused(text: str) -> None:
    with pytest.raises(HuefieldError, match=r"c\.yaml is nested too deeply, or an alias"):
        parse_yaml(text, "c.yaml")


@pytest.mark.parametrize("text", ["a: [1", "day: 2026-13-45"])
def test_other_faults_name_the_source(text: str) -> None:
    with pytest.raises(HuefieldError, match=r"c\.yaml is not valid YAML"):
        parse_yaml(text, "c.yaml")
