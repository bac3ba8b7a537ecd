"""What reaches a terminal of what others print: text, and color that ends with its line."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.escapes import clean, one_line

RED, PLAIN = "\x1b[31m", "\x1b[0m"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
COLOR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # What is welcome.
        ("a\tb é € 日本 🚀\n", "a\tb é € 日本 🚀\n"),
        (f"{RED}red{PLAIN} and \x1b[38;2;1;2;3mmore\x1b[m", f"{RED}red{PLAIN} and \x1b[38;2;1;2;3mmore\x1b[m"),
        ("\x1b[38:2::1:2:3mcolons\x1b[00m", "\x1b[38:2::1:2:3mcolons\x1b[00m"),
        # A color ends with its line, so that what we say next can be read.
        (f"{RED}red", f"{RED}red{PLAIN}"),
        (f"{RED}red\nnext\n", f"{RED}red{PLAIN}\nnext\n"),
        (f"{RED}a{PLAIN}\x1b[8mhidden\n\x1b[1;0m\n", f"{RED}a{PLAIN}\x1b[8mhidden{PLAIN}\n\x1b[1;0m{PLAIN}\n"),
        # Cursor, screen, modes and questions, which a terminal would answer as if it were typed.
        ("\x1b[2J\x1b[H\x1b[10;10Hup\x1b[3A\x1b[K\x1b[?1049h\x1b[?25l", "up"),
        ("\x1b[c\x1b[>c\x1b[6n\x1b[?6n\x1b[21t\x1b[>q\x1b[?1$p", ""),
        ("\x1b[>4;2mkeys\x1b[?4m\x1b[1 q\x1b[!p\x1b[1#{", "keys"),
        ("\x1b7\x1b8\x1bD\x1bM\x1bc\x1b=\x1b>\x1bNreset", "reset"),
        ("\x1b(B\x1b[m\x1b)0\x1b%G\x1b#8\x1b $<chars", "\x1b[mchars"),
        # Strings: clipboard, title, links, pictures, settings.
        ("\x1b]52;c;ZXZpbA==\x07clipboard", "clipboard"),
        ("\x1b]0;title\x1b\\text\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "textlink"),
        ("\x1bP1$r0m\x1b\\a\x1b_Gf=100;AAAA\x1b\\b\x1b^private\x1b\\c\x1bXstart\x1b\\d", "abcd"),
        # The same in one character each.
        ("\x9b2J\x9d52;c;ZXZpbA==\x9cx\x90q\x9cy\x9e\x9f\x98\x85\x84z", "xy"),
        ("\x9b31mred\x9b0m", "red"),
        # Bidirectional embeddings, overrides and isolates; right-to-left text and its marks need none of them.
        ("rm \u202etxt.\u202csafe \u202a\u202b\u202d\u2066\u2067\u2068a\u2069", "rm txt.safe a"),
        (f"{RED}\u202ered{PLAIN} שלום \u200f\u2026", f"{RED}red{PLAIN} שלום \u200f\u2026"),
        ("\x1b\u202e[2J\x9b\u202e2J", "[2J2J"),
        # What is left of them.
        ("bell\x07 back\x08 null\x00 del\x7f vt\x0b ff\x0c so\x0e cr\r.", "bell back null del vt ff so cr."),
        ("torn \x1b[12;\nnext \x1b\nlast \x1b", "torn 12;\nnext \nlast "),
        ("open \x1b]0;no end\nnext \x90no end\nlast", "open \nnext \nlast"),
        ("\x1b\x1b[31mtwice", f"{RED}twice{PLAIN}"),
        ("\x1b\x1b[2Jtwice\x1b\x1b]0;t\x07", "twice"),
    ],
)
def test_what_is_shown_of_a_text(text: str, shown: str) -> None:
    assert clean(text.encode()).decode() == shown


def test_bytes_that_are_no_utf8_are_no_controls_either() -> None:
    assert clean(b"\x9b2J \xff\xfe \xe2\x82").decode() == "\ufffd2J \ufffd\ufffd \ufffd"


def test_plain_text_is_handed_on_as_it_is() -> None:
    block = b"step 1 loss 2.31\n" * 1000
    assert clean(block) is block


HARD = ["\x1b", "\x1b[", "\x1b]", "\x1b[1;", "\x1b[0", "\x1bP", "\x1b ", "\x9b", "\x9d", "\x9b1;", "\x90q", RED, "\x07"]


@pytest.mark.parametrize("piece", HARD, ids=map(repr, HARD))
def test_a_flood_of_anything_takes_time_by_its_size_alone(piece: str) -> None:
    text = piece.encode() * (300_000 // len(piece.encode()))
    start = time.process_time()
    clean(text + b"1" * 300_000)
    assert time.process_time() - start < 2  # mostly 0.03 s; minutes, if it grew with the square


# ---- any bytes ------------------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [b"\x1b", b"[", b"]", b"31", b";", b":", b"m", b"0m", b"2J", b"\x07", b"\x1b\\", b"P", b"\xc2", b"\x9b", b"\x9d",
     b"\x9c", b"\xc2\x9b", b"\n", b"\t", b"\r", b"a", b" ", b"?", "é".encode(), "€".encode(), b"\x00", b"\x7f",
     "\u202e".encode(), b"\xe2\x80", b"\xae", b"\xe2"]
)  # fmt: skip
texts = st.lists(pieces | st.binary(max_size=3), max_size=30).map(b"".join)


def faults_of(shown: str) -> list[str]:
    """Return the controls that a terminal should not get."""
    plain = COLOR.sub("", shown)
    controls = [letter for letter in plain if unicodedata.category(letter) == "Cc" and letter not in "\n\t"]
    return controls + [letter for letter in plain if letter in BIDI]


@given(texts)
@example(b"\xc2\x1b[31m\x9b2J")
def test_no_text_steers_a_terminal(text: bytes) -> None:
    shown = clean(text)
    assert faults_of(shown.decode()) == []
    assert shown.count(b"\n") == text.count(b"\n")
    assert clean(shown) == shown
    assert all(line.endswith(PLAIN) or not COLOR.search(line) or re.search(r"\x1b\[0*m[^\x1b]*$", line)
               for line in shown.decode().split("\n"))  # fmt: skip


letters = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=BIDI) | st.sampled_from("\n\t")


@given(st.text(letters, max_size=60))
def test_every_letter_is_shown(text: str) -> None:
    assert clean(text.encode()).decode() == text


@given(st.text(max_size=80), st.integers(1, 50))
def test_anybody_s_words_are_a_part_of_one_line(text: str, limit: int) -> None:
    said = one_line(text, limit)
    assert said.splitlines() in ([], [said])
    assert len(said) <= limit + len("...")
    assert "\x1b" not in said


def test_what_becomes_of_words() -> None:
    assert one_line("gpü 0\tis\x1b[2J fine\nlaunch: all is well", 100) == "gpü 0 is?[2J fine?launch: all is well"
    assert one_line("rm \u202etxt\u2066", 100) == "rm ?txt?"
    assert one_line("a" * 30, 10) == "aaaaaaaaaa..."
    assert one_line("a" * 10, 10) == "aaaaaaaaaa"
