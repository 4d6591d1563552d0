"""What is wrong with a lake."""

from whitepanda.common.errors import WhitepandaError


class LakeError(WhitepandaError):
    """The lake holds what this central cannot use."""


class DamagedError(LakeError):
    """An object of the lake, `name`, does not have the bytes that were written."""

    def __init__(self, root: str, name: str, why: str, remedy: str = "") -> None:
        super().__init__(f"{root}/{name} is damaged: {why}{'; ' if remedy else ''}{remedy}")
        self.name = name


class NotFiniteError(LakeError):
    """What was computed is no version: one of its numbers is not finite."""


class SlowError(Exception):
    """The answer takes too long."""


class StoppedError(Exception):
    """Nobody waits for the answer any more."""
