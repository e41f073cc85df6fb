"""YAML from people, with limits on what a short text may expand to."""

from typing import Any

import yaml

from huefield.support.errors import HuefieldError

MOST_VALUES = 100_000
"""Values that a configuration may have, aliases written out."""


def parse_yaml(text: str, source: str) -> Any:
    """The content of a YAML text.

    Aliases are allowed, but a text whose aliases refer to themselves or multiply to more than ``MOST_VALUES`` values is
    refused: every later step would have to write them out.

    Args:
        text: the YAML.
        source: its origin, for messages.
    """
    try:
        content = yaml.safe_load(text)
        count = _count(content, {})
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that cannot exist
        raise HuefieldError(f"{source} is not valid YAML: {error}") from None
    except RecursionError:
        raise HuefieldError(
            f"{source} is nested too deeply, or an alias (*name) contains itself: write the values out"
        ) from None
    if count > MOST_VALUES:
        raise HuefieldError(f"the aliases (*name) of {source} multiply to {count:.0e} values: write the values out")
    return content


def _count(content: Any, known: dict[int, int]) -> int:
    """Values in a tree whose branches may be shared; each branch is counted once and remembered."""
    if not isinstance(content, dict | list | set | tuple):
        return 1
    if id(content) not in known:
        children = (*content, *content.values()) if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_count(child, known) for child in children)
    return known[id(content)]
