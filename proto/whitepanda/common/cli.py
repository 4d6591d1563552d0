"""The `whitepanda` command: finds its commands by entry points, turns errors into one line and an exit code."""

import inspect
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import metadata
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from whitepanda.common.errors import WhitepandaError
from whitepanda.common.extras import how_to_install
from whitepanda.common.texts import is_printable, printable

#: Without gRPC's new listener central's ten thousand idle streams cost 3/4 of the CPU time, saturated ones 2/3, because
#: the thread that waits for a completion polls the sockets too (docs/adr/0003).
GRPC_EXPERIMENTS = "-event_engine_listener"


class PlainConsole(Console):
    """A console that prints names literally: no markup, no terminal control, no change of direction (`printable`)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render the printable form of a text."""
        return super().render_str(printable(text, keep="\n\t"), **options)  # so that columns are wide enough

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render the printable form of everything else."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or is_printable(text) or text == "\n":
                yield segment
            else:
                yield Segment(printable(text, keep="\n"), segment.style)


#: Where results for people go. Progress bars and errors go to `errors`, so that a pipe sees only results.
console: Console = PlainConsole()
errors: Console = PlainConsole(stderr=True)

_READER_GONE = 141  # 128 + SIGPIPE, as a shell reports it
_ALIKE = 0.75  # least similarity of an option that is suggested
#: Phrases of pydantic, and whitepanda's.
_PHRASES = (
    ("Value error, ", ""),
    ("Input should be ", "must be "),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
)

_HELP = ["-h", "--help"]
_NO_COMMAND = ""  # for --version: importing every command takes seconds


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, for programs. NaN becomes null."""
    sys.stdout.write(json.dumps(_clean(value), indent=2, sort_keys=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    return value


def _version(value: bool) -> None:  # noqa: FBT001 - typer's callback signature
    if value:
        console.print(f"whitepanda {metadata.version('whitepanda')}")
        raise typer.Exit


def build() -> typer.Typer:
    """Make the command with every registered subcommand whose modules can be imported here."""
    app = typer.Typer(
        name="whitepanda",
        help="Which VM suffers on this KVM host, how much, from whom, and what to do.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": _HELP},
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(  # noqa: FBT001 - typer's way to declare an option
            False, "--version", help="Print the version.", callback=_version, is_eager=True
        ),
    ) -> None:
        pass

    wanted = _NO_COMMAND if sys.argv[1:2] == ["--version"] else _wanted(sys.argv)
    for point in sorted(metadata.entry_points(group="whitepanda.commands"), key=lambda p: p.name):
        # Only the command that runs is imported, unless help needs them all.
        if wanted is not None and point.name != wanted:
            continue
        try:
            command: typer.Typer | Callable[..., Any] = point.load()
        except ImportError as error:
            if wanted is None:
                continue
            lacks = f"this installation lacks '{error.name}'"
            raise WhitepandaError(f"whitepanda {point.name}: {lacks}; {how_to_install('central')}") from error
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(name=point.name)(command)
    return app


def command() -> Any:
    """Make the command that runs, with tidied help: flags without a type, paragraphs without line breaks."""
    made = typer.main.get_command(build())
    _tidy_help(made)
    return made


def _tidy_help(command: Any) -> None:
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(one if "\b" in one else one.replace("\n", " ") for one in paragraphs)
    options = [*command.params, command.get_help_option(typer.Context(command, help_option_names=_HELP))]
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _tidy_help(each)


def _wanted(argv: list[str]) -> str | None:
    """Return the subcommand's name if it is a registered one, else None (then all commands are loaded)."""
    first = next((word for word in argv[1:] if not word.startswith("-")), None)
    names = metadata.entry_points(group="whitepanda.commands").names
    return first if first in names else None


def main() -> None:
    """Run the command line. Known errors end in one line on standard error and their exit code."""
    # gRPC's core reads these settings when it is imported, later. It writes raw lines for every failed handshake; only
    # central reads them (central.ingest.tls_rejections), elsewhere errors are exceptions.
    is_central = _wanted(sys.argv) == "central"
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if is_central else "NONE")
    if is_central:
        os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A terminal of another encoding gets "?" for missing characters.
        sys.stdout.reconfigure(errors="replace")
    try:
        # Not standalone: that puts a box of five lines around an error.
        done = command()(prog_name="whitepanda", standalone_mode=False)
        if sys.stdout is not None:  # started without one
            sys.stdout.flush()  # a reader that has gone is noticed here, not when the interpreter ends
        sys.exit(done if isinstance(done, int) else 0)
    except WhitepandaError as error:
        _fail(*error.problems, exit_code=error.exit_code)
    except typer.TyperException as error:
        _fail_usage(error)
    except BrokenPipeError:
        _leave_reader()
    except SystemExit as error:
        # rich and typer end like this if the reader is gone.
        if isinstance(error.__context__, BrokenPipeError):
            _leave_reader()
        raise
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(*problems: str, exit_code: int) -> NoReturn:
    for problem in problems:
        errors.print(Text.assemble(("error:", "bold red"), " ", printable(problem, keep="\n")), soft_wrap=True)
    sys.exit(exit_code)


def _leave_reader() -> NoReturn:
    """End because the reader of the output has gone; buffered output must not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_READER_GONE)


def _fail_usage(error: typer.TyperException) -> NoReturn:
    """Report a wrong command line in one line. typer has shown the help of a command without arguments."""
    exit_code: int = getattr(error, "exit_code", 1)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(exit_code)
    problem, context = _usage_problem(error), getattr(error, "ctx", None)
    if context is not None and not problem.endswith("?"):
        problem += f"; see `{context.command_path} --help`"
    _fail(problem, exit_code=exit_code)


def _usage_problem(error: typer.TyperException) -> str:
    """Return the option or argument that is wrong, what it must be, and the value."""
    if isinstance(option := getattr(error, "option_name", None), str) and hasattr(error, "possibilities"):
        near = get_close_matches(option, error.possibilities or (), cutoff=_ALIKE)
        return f"{option}: no such option" + (f", did you mean {' or '.join(near)}?" if near else "")
    if type(error) is typer.BadParameter and error.param is not None:
        return f"{' / '.join(error.param.opts)}: {_value_problem(error)}"
    text = error.format_message().replace(". Did you mean", ", did you mean").rstrip(".")
    return text[:1].lower() + text[1:]


def _value_problem(error: typer.BadParameter) -> str:
    text = error.message.rstrip(".").partition(", unable to parse")[0]
    for phrase, plain in _PHRASES:
        text = text.replace(phrase, plain)
    cause: Any = error.__cause__  # pydantic's, which checks values for typer
    value = cause.errors()[0]["input"] if hasattr(cause, "errors") else None
    return text if value in (None, "") or repr(value) in text else f"{text} (value {value})"
