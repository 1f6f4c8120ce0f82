"""Text of strangers, made fit for a terminal: what would command the terminal is shown instead.

A model, a file or a folder's name may hold escape sequences, which change the window's title, move
the cursor or hide a line. Letters of every language stay as they are.
"""

import re

# C0 and C1 control characters and DEL; line separators that no log expects; marks that reverse the
# order of the letters around them; bytes that are no text, as Python reads them from a file's name
COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
KEPT = "\n\t"
LONGEST = 600  # letters of a message


def printable(text: str, keep: str = KEPT) -> str:
    r"""The same text with its control characters written out, such as \x1b for the escape key."""
    return COMMANDS.sub(lambda match: match[0] if match[0] in keep else _shown(match[0]), text)


def raised(error: BaseException) -> str:
    """`KeyError: 'width'`; an exception of a stranger may fail to say what it is."""
    try:
        said = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever their code does
        said = "it does not say what happened"
    return f"{type(error).__name__}: {said}"


def one_line(message: object, most: int = LONGEST) -> str:
    """What an error says; of a very long text the beginning and the end will do."""
    text = " ".join(str(message).split()) or type(message).__name__
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 3 :]}"


def distinct(name: str) -> str:
    r"""A name in one line, and no two names alike: the backslash is escaped too, and so is whatever
    cannot be seen. Bytes that are no UTF-8 are written as \udcff."""
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode()
        for one in name
    )


def json_safe(text: str) -> str:
    """The same JSON, in which no character commands a terminal and every one can be encoded."""
    return COMMANDS.sub(lambda match: match[0] if match[0] in KEPT else _unicode(match[0]), text)


def _shown(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # the byte that was there
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _unicode(letter: str) -> str:
    return f"\\u{ord(letter):04x}"
