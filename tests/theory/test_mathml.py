"""Formulas as MathML: each piece of the notation, and every formula of the theory."""

import re
import unicodedata
from xml.etree import ElementTree

import pytest

from attnlab.theory import catalogue, mathml

MADE = {"math", "mi", "mn", "mo", "mtext", "mspace", "mrow", "msub", "msup", "msubsup", "mfrac"}
MADE |= {"msqrt", "mtable", "mtr", "mtd"}


def read(element):
    return "".join(ElementTree.fromstring(mathml.markup(element)).itertext())


def letters(text):
    """What is read, in any order: without spaces and what becomes the shape of a formula."""
    plain = unicodedata.normalize("NFKC", text).replace("∑", "Σ").replace("⊤", "T")
    return sorted(re.sub(r"[\s_^()/⁄;√]", "", plain))


def written(text):
    """Without the frame and the spaces, brackets and signs without their attributes."""
    inside = "".join(
        one if isinstance(one, str) else mathml.markup(one[1][0]) for one in mathml.pieces(text)
    )
    return re.sub(r"(<\w+) [^>]*>", r"\1>", re.sub(r"<mspace[^>]*></mspace>", "", inside))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("αᵢ", "<msub><mi>α</mi><mi>i</mi></msub>"),
        ("v_a", "<msub><mi>v</mi><mi>a</mi></msub>"),
        ("h_kv", "<msub><mi>h</mi><mi>kv</mi></msub>"),
        ("hₜ₋₁", "<msub><mi>h</mi><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow></msub>"),
        ("N²d", "<mrow><msup><mi>N</mi><mn>2</mn></msup><mi>d</mi></mrow>"),
        ("R_hᵀ", "<msubsup><mi>R</mi><mi>h</mi><mi>⊤</mi></msubsup>"),
        ("e^(−g)", "<msup><mi>e</mi><mrow><mo>−</mo><mi>g</mi></mrow></msup>"),
        ("e^β", "<msup><mi>e</mi><mi>β</mi></msup>"),
        ("√d", "<msqrt><mi>d</mi></msqrt>"),
        ("w/2", "<mfrac><mi>w</mi><mn>2</mn></mfrac>"),
        ("(a + b) / 2", "<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac>"),
        ("1 + w/2", "<mrow><mn>1</mn><mo>+</mo><mfrac><mi>w</mi><mn>2</mn></mfrac></mrow>"),
        ("cos θ", "<mrow><mi>cos</mi><mi>θ</mi></mrow>"),
        ("PX", "<mrow><mi>P</mi><mi>X</mi></mrow>"),
        ("GQA", "<mi>GQA</mi>"),
        ("key/value heads", "key/value heads"),
        ("times in a row", "times in a row"),
        ("Σ_a", "<msub><mi>Σ</mi><mi>a</mi></msub>"),
        ("Σⱼ", "<msub><mo>∑</mo><mi>j</mi></msub>"),
        ("|x|", "<mrow><mo>|</mo><mi>x</mi><mo>|</mo></mrow>"),
        ("q′ᵢ", "<msub><mrow><mi>q</mi><mo>′</mo></mrow><mi>i</mi></msub>"),
    ],
)
def test_a_piece_of_the_notation(text, expected):
    assert written(text) == expected


def test_a_bar_between_two_spaces_is_no_bracket():
    assert written("p(x | h)").count("<mo>|</mo>") == 1


def test_rows_are_a_matrix_unless_a_function_takes_them():
    assert written("(a  b; c  d)").count("<mtd>") == 4
    assert "mtable" not in written("GQA(a; b)") and "mtable" not in written("wᵀ[k; q]")


def test_a_line_may_end_between_parts_before_relations_and_around_words():
    (line,) = mathml.formula("a = b,   (c  d) ⇒ e for all i, and j")
    shown = [[one if isinstance(one, str) else read(one) for one in part] for part in line]
    assert shown == [["a", "=b,"], ["(cd)", "⇒e", "for all", "i,", "and", "j"]]
    (alone,) = mathml.formula("a   ⇒   multi-head, or not")
    shown = [[one if isinstance(one, str) else read(one) for one in part] for part in alone]
    assert shown == [["a"], ["⇒", "multi-head,", "or not"]]


def test_text_stays_text():
    markup = "".join(map(mathml.markup, mathml.pieces("<b> & x")))
    assert "<b>" not in markup and "&lt;" in markup and "&amp;" in markup


@pytest.mark.parametrize("name", catalogue.names())
def test_every_letter_of_a_formula_is_typeset(name):
    text = catalogue.about(name).formula
    lines = mathml.formula(text)
    assert len(lines) == len(text.splitlines())
    for line, source in zip(lines, text.splitlines(), strict=True):
        shown = [one for part in line for one in part]
        trees = [ElementTree.fromstring(mathml.markup(one)) for one in shown if one[0] == "math"]
        assert {one.tag for tree in trees for one in tree.iter()} <= MADE
        read_out = "".join(one if isinstance(one, str) else read(one) for one in shown)
        assert letters(read_out) == letters(source), source
