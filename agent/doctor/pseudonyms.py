"""Stable names in place of true ones: a VM has one pseudonym all through a support bundle, and another in the next."""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Collection
from typing import Any

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"(?<![0-9a-fA-F])[0-9a-fA-F]{32}(?![0-9a-fA-F])"  # a UUID without its dashes, such as a project's of OpenStack
_MAC = r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![0-9a-fA-F:])"
_TAP = r"(?<![0-9A-Za-z])(?:tap|qvo|qvb|qbr|qr-|vhu)[0-9a-f]{8}-[0-9a-f]{2}(?![0-9a-f])"  # named after Neutron's ports
_IPV4 = r"(?<![0-9A-Za-z.])(?!127\.|0\.0\.0\.0)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])"
_IPV6 = r"(?<![0-9A-Za-z:.])(?=[0-9a-fA-F]*:)[0-9a-fA-F:]*[0-9a-fA-F](?![0-9A-Za-z:])"
_SHAPES = re.compile(
    f"(?P<uuid>{_UUID})|(?P<hex>{_HEX})|(?P<mac>{_MAC})|(?P<tap>{_TAP})|(?P<ipv4>{_IPV4})|(?P<ipv6>{_IPV6})"
)
_MIN_WORD = 3
_NO_MACHINE = re.compile(r"[^A-Za-z0-9.-]")
_NO_WORD = re.compile(r"(?!)")


class Pseudonyms:
    """Pseudonyms under a random key that nobody keeps. UUIDs, MAC and IP addresses are known without being told.

    Args:
        enabled: False leaves everything as it is but for what is learnt with `always`.
        vocabulary: words that stay in texts even where something is called so.

    """

    def __init__(self, *, enabled: bool = True, vocabulary: Collection[str] = ()) -> None:
        self.enabled = enabled
        self._vocabulary = frozenset(vocabulary)
        self._secret = secrets.token_bytes(32)
        self._words: dict[str, str] = {}
        self._whole: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._made: set[str] = set()
        self._pattern: re.Pattern[str] | None = _NO_WORD

    def learn(self, kind: str, true: str, *, always: bool = False) -> str:
        """Return the pseudonym of a name, and replace that name wherever it stands in texts from now on.

        Of what is shorter than three characters only texts that are nothing else are replaced, and of numbers and
        words of the vocabulary none: they would spoil every text, and tell nobody anything.

        Args:
            kind: what it is, such as "vm": its pseudonym begins with it.
            true: the name.
            always: also where pseudonyms are off.

        """
        if not (self.enabled or always) or not true or true in self._made:
            return true
        known = self._known.get(true)
        if known is None:
            shape = _SHAPES.fullmatch(true)
            known = self._shaped(shape) if shape else f"{kind}-{self._digest(true)[:10]}"
            self._known[true] = known
            self._made.add(known)
            if not true.isdecimal() and true not in self._vocabulary:
                self._replace(true, known)
        return known

    def _replace(self, true: str, known: str) -> None:
        """Replace a name in texts from now on, also as it is in the names of systemd's units."""
        self._whole[true] = known
        if len(true) >= _MIN_WORD:
            self._words[true] = known
            for form in (true, _NO_MACHINE.sub("", true)):  # libvirt leaves out what its machines may not be called
                if len(form) >= _MIN_WORD and form not in self._vocabulary:
                    self._words.setdefault(_escaped(form), known)
            self._pattern = None

    def text(self, text: str) -> str:
        """Replace in a text all names that were learnt and all UUIDs, MAC and IP addresses."""
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
        if found.lastgroup == "ipv6" and not _is_remote_ipv6(true):
            return true
        makers: dict[str, Callable[[str], str]] = {
            "uuid": lambda d: f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:32]}",
            "hex": lambda d: d[:32],
            # Of the range that no maker of cards has.
            "mac": lambda d: "02:" + ":".join(d[n : n + 2] for n in range(0, 10, 2)),
            "tap": lambda d: f"dev-{d[:10]}",
            "ipv4": lambda d: f"ip-{d[:10]}",
            "ipv6": lambda d: f"ip-{d[:10]}",
        }
        made = makers[str(found.lastgroup)](self._digest(true.lower()))
        self._made.add(made)
        return made

    def _digest(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _escaped(name: str) -> str:
    """Write a name as systemd does in the names of units: all but letters, digits and some signs by their bytes."""
    plain = re.compile(r"[A-Za-z0-9:_.]")
    return "".join(
        char if plain.match(char) else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in name
    )


def _is_remote_ipv6(text: str) -> bool:
    """Whether it is an address, and not of this very host; times and addresses of PCI look like one."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
