"""Stable names in place of true ones: a VM has one pseudonym all through a support bundle, and another in the next."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Any

__all__ = ["Pseudonyms"]

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"(?<![0-9a-fA-F])[0-9a-fA-F]{32}(?![0-9a-fA-F])"  # a UUID without its dashes, such as a project's of OpenStack
_MAC = r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![0-9a-fA-F:])"
_TAP = r"(?<![0-9A-Za-z])(?:tap|qvo|qvb|qbr|qr-|vhu)[0-9a-f]{8}-[0-9a-f]{2}(?![0-9a-f])"  # named after Neutron's ports
_SHAPES = re.compile(f"(?P<uuid>{_UUID})|(?P<hex>{_HEX})|(?P<mac>{_MAC})|(?P<tap>{_TAP})")
_MIN_WORD = 3
_NO_WORD = re.compile(r"(?!)")


class Pseudonyms:
    """Pseudonyms under a random key that nobody keeps. What has the shape of a UUID or MAC is known without being told.

    Args:
        enabled: False leaves everything as it is but for what is learnt with `always`.

    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._secret = secrets.token_bytes(32)
        self._words: dict[str, str] = {}
        self._whole: dict[str, str] = {}
        self._made: set[str] = set()
        self._pattern: re.Pattern[str] | None = _NO_WORD

    def learn(self, kind: str, true: str, *, always: bool = False) -> str:
        """Return the pseudonym of a name, and replace that name wherever it stands in texts from now on.

        Of what is shorter than three characters only texts that are nothing else are replaced, and of numbers none:
        they would spoil every text, and tell nobody anything.

        Args:
            kind: what it is, such as "vm": its pseudonym begins with it.
            true: the name.
            always: also where pseudonyms are off.

        """
        if not (self.enabled or always) or not true or true in self._made:
            return true
        known = self._whole.get(true)
        if known is None:
            shape = _SHAPES.fullmatch(true)
            known = self._shaped(shape) if shape else f"{kind}-{self._digest(true)[:10]}"
            self._made.add(known)
            if true.isdecimal():
                return known
            self._whole[true] = known
            if len(true) >= _MIN_WORD:
                self._words[true] = known
                self._words.setdefault(true.replace("-", "\\x2d"), known)  # in names of systemd's units
                self._pattern = None
        return known

    def text(self, text: str) -> str:
        """Replace in a text all names that were learnt and all UUIDs and MAC addresses."""
        if text in self._whole:
            return self._whole[text]
        if self._pattern is None:
            words = sorted(self._words, key=len, reverse=True)
            joined = "|".join(re.escape(word) for word in words)
            # systemd writes a dash in the names of units as \x2d: a word may begin behind that.
            begin = r"(?:(?<![0-9A-Za-z])|(?<=\\x2d))"
            self._pattern = re.compile(f"{begin}(?:{joined})(?![0-9A-Za-z])")
        # Names first: one may have a UUID in it.
        named = self._pattern.sub(lambda found: self._words[found[0]], text)
        return _SHAPES.sub(self._shaped, named) if self.enabled else named

    def walk(self, value: Any) -> Any:
        """Replace in all texts of nested lists and dictionaries; in keys only UUIDs, MAC addresses and their like."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._key(key): self.walk(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.walk(item) for item in value]
        return value

    def _key(self, key: Any) -> Any:
        return _SHAPES.sub(self._shaped, key) if self.enabled and isinstance(key, str) else key

    def _shaped(self, found: re.Match[str]) -> str:
        true = found[0]
        if true in self._made:
            return true  # ours already
        makers: dict[str, Callable[[str], str]] = {
            "uuid": lambda d: f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:32]}",
            "hex": lambda d: d[:32],
            # Of the range that no maker of cards has.
            "mac": lambda d: "02:" + ":".join(d[n : n + 2] for n in range(0, 10, 2)),
            "tap": lambda d: f"dev-{d[:10]}",
        }
        made = makers[str(found.lastgroup)](self._digest(true.lower()))
        self._made.add(made)
        return made

    def _digest(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
