import pytest

from huefield.support.names import file_stems, latex_text, markdown_text

EVIL = "a|b<script>/../x"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (EVIL, r"a\|b\<script\>/../x"),
        ("my_model-v2.1", "my_model-v2.1"),
        ("a\nb\r\n\tc\x00d", "a b c d"),
        ("`code` [link](x) *bold* \\", r"\`code\` \[link\](x) \*bold\* \\"),
    ],
)
def test_markdown(name: str, expected: str) -> None:
    assert markdown_text(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [(EVIL, r"a\textbar{}b\textless{}script\textgreater{}/../x"), ("50 % & $x_1$\n#", r"50 \% \& \$x\_1\$ \#")],
)
def test_latex(name: str, expected: str) -> None:
    assert latex_text(name) == expected


def test_file_names_are_safe_and_differ() -> None:
    stems = file_stems([EVIL, "a-b-script-..-x", "A/B", "a-b", "../../etc/passwd", "..", "", "γ (2)", "x" * 500])
    assert stems == [
        "a-b-script-..-x",
        "a-b-script-..-x (2)",
        "A-B",
        "a-b (2)",
        "etc-passwd",
        "unnamed",
        "unnamed (2)",
        "γ (2)",
        "x" * 80,
    ]
