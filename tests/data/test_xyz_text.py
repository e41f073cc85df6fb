import pytest

from huefield.data.xyz_text import is_plain_text


@pytest.mark.parametrize(
    ("text", "plain"), [("slab", True), ("a-b_1.x", True), ("T", False), ("nan", False), ("1e5", False), ("a b", False)]
)
def test_plain_text(text: str, plain: bool) -> None:
    assert is_plain_text(text) is plain
