"""Texts from users, such as names of VMs, made fit for a terminal, a log line, a label and a message.

They may have bytes that are not UTF-8, which protobuf refuses; control characters; marks that turn the reading
direction; characters without a shape; any length. Needs only the standard library.
"""

import re
from collections.abc import Sequence

#: Characters of a name.
MAX_NAME = 256
_MAX_LISTED = 5  # VMs in a message
# Fillers of Hangul, Braille without dots, variation selectors and the like: Python prints them.
_BLANK = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)


def is_printable(text: str) -> bool:
    """Whether each character is shown as something, or is a space."""
    return text.isprintable() and _BLANK.search(text) is None


def printable(text: str, keep: str = "") -> str:
    r"""Write every character that is not printable as Python does in a string: \x1b, \u202e, \xff for a stray byte.

    A second time changes nothing. In `text` a byte that is not UTF-8 is a surrogate (`surrogateescape`); characters in
    `keep` stay.
    """
    if is_printable(text):
        return text
    return "".join(char if is_printable(char) or char in keep else _escaped(char) for char in text)


def clean_name(text: str) -> str:
    """Make a name `printable` and at most `MAX_NAME` characters long; the last of one that was cut is "…"."""
    if len(text) <= MAX_NAME and is_printable(text):
        return text
    text = printable(text[: MAX_NAME + 1])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def several_named(name: str, listed: Sequence[str]) -> str:
    """Say that several VMs have a name, and what to give instead; `listed` has their UUIDs."""
    more = ", ..." if len(listed) > _MAX_LISTED else ""
    return f"{len(listed)} VMs are named {name[:80]!r}: {', '.join(listed[:_MAX_LISTED])}{more}; give the UUID"


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # what surrogateescape makes of the bytes 0x80 to 0xff
        return f"\\x{char.encode(errors='surrogateescape')[0]:02x}"
    return char.encode("unicode_escape").decode()


def counted(number: int, what: str) -> str:
    """Return a number and its noun: 1 tick, 2 ticks."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
