import pytest
from hypothesis import given
from hypothesis import strategies as st

from whitepanda.common.texts import MAX_NAME, clean_name, printable

ANY_TEXT = st.text(st.characters(), max_size=400)  # lone surrogates too


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("instance-00000a1", "instance-00000a1"),
        ("café 数据库 🐼", "café 数据库 🐼"),
        (b"bad\xff\xfename".decode("utf-8", "surrogateescape"), r"bad\xff\xfename"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("csi\x9b31m", r"csi\x9b31m"),
        ("two\nlines\t", r"two\nlines\t"),
        ("turned\u202eround", r"turned\u202eround"),
        ("half\ud83d", r"half\ud83d"),
        ("blank\u115f\u1160\u2800\u3164\uffa0", r"blank\u115f\u1160\u2800\u3164\uffa0"),
        ("한글 ᄀ ⠁", "한글 ᄀ ⠁"),
        *((char, char.encode("unicode_escape").decode()) for char in "\u034f\u17b4\u17b5\u180b\u180f\ufe00\ufe0f"),
        *((char, char.encode("unicode_escape").decode()) for char in "\U0001d159\U000e0100\U000e01ef"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_written_by_its_number(text, shown):
    assert printable(text) == clean_name(text) == shown


def test_some_may_stay():
    assert printable("a\n\x1bb", keep="\n") == "a\n\\x1bb"


@pytest.mark.parametrize("text", ["a" * 60_000, "\x1b" * 60_000, "a" * (MAX_NAME - 1) + "\x1b"])
def test_a_long_name_is_cut_and_says_so(text):
    name = clean_name(text)
    assert (len(name), name[-1]) == (MAX_NAME, "…")


def test_the_longest_name_is_not_cut():
    assert clean_name("a" * MAX_NAME) == "a" * MAX_NAME


@given(ANY_TEXT)
def test_a_name_is_clean_after_once_and_fits_any_message(text):
    name = clean_name(text)
    assert name.isprintable() and not set(name) & set("\u115f\u1160\u2800\u3164\uffa0")
    assert len(name) <= MAX_NAME
    assert name.encode().decode() == name
    assert clean_name(name) == name
    assert clean_name(printable(text)) == name or len(printable(text)) > MAX_NAME
