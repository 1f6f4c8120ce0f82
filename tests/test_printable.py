"""What would command a terminal is written out; letters of every language stay."""

import json

import pytest

from attnlab.printable import json_safe, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("one\r\ntwo\tthree\x7f", "one\\x0d\ntwo\tthree\\x7f"),
        (b"caf\xe9".decode(errors="surrogateescape"), "caf\\xe9"),
        ("thé Ångström 注意 שלום 👩‍🔬", "thé Ångström 注意 שלום 👩‍🔬"),
    ],
)
def test_control_characters_are_shown_and_letters_kept(text, shown):
    assert printable(text) == shown


def test_a_name_stays_on_its_line():
    assert printable("a\nb\tc", keep="") == "a\\x0ab\\x09c"


def test_json_says_the_same_without_a_control_character():
    value = {"name": "\x1b[2J\x9b \u202e \udce9 é\n"}
    safe = json_safe(json.dumps(value, ensure_ascii=False))
    assert json.loads(safe) == value and safe.isprintable() and "é" in safe


def test_a_message_is_one_line_and_a_long_one_keeps_both_ends():
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"  # which says nothing of itself
    long = one_line("begin " + "x" * 5000 + "\nend", 99)
    assert len(long) < 99 and long.startswith("begin x") and long.endswith("x end")
