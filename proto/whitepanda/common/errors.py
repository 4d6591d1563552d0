"""The errors that people see: one clear line each, and an exit code."""


class WhitepandaError(Exception):
    """Base of all errors that people see: `problems`, nearly always one, each in a line: what, where, value, remedy."""

    exit_code = 1

    def __init__(self, *problems: object) -> None:
        self.problems = tuple(map(str, problems))
        super().__init__("; ".join(self.problems))


class ConfigError(WhitepandaError):
    """A configuration file or settings in it are wrong: all of them, one problem each, in the order of the file."""

    exit_code = 2


class InputError(WhitepandaError):
    """Data that the user gave (a trace, a scenario, an argument) is wrong."""

    exit_code = 3


class FieldError(InputError):
    """One value that the user gave is wrong: the `problem` with `field`, its name in the fleet API.

    The message names it as an option of the command line.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"--{field.replace('_', '-')} {problem}")
        self.field = field
        self.problem = problem


class UnavailableError(WhitepandaError):
    """Something that has to run or exist does not: the agent, central, a library, a permission."""

    exit_code = 4


class TlsError(WhitepandaError):
    """A certificate or key is missing, unreadable, or not what it should be."""

    exit_code = 5
