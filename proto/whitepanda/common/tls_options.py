"""The options for TLS files, the same in every command. Not in `cli`, which must not import gRPC (see `cli.main`)."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from whitepanda.common.fleets import CENTRAL, FLEET, TLS, CentralAddress, Fleet, files_in, resolve
from whitepanda.common.tls import TlsFiles

_FOLDER = f"Folder of `whitepanda pki`: ca.crt, NAME.crt and NAME.key are taken; or {TLS}."
_FLEET = f"A fleet of your config.toml in ~/.config/whitepanda; or {FLEET}, or its default."
_NAME = "Name in your certificate, one of central's operators; default: the fleet's, or operator."

FolderOption = Annotated[Path | None, typer.Option("--tls", metavar="DIR", help=_FOLDER)]
CaOption = Annotated[Path | None, typer.Option("--ca", help="PEM file: CA of central's certificate, instead of --tls.")]
CertOption = Annotated[Path | None, typer.Option("--cert", help="PEM file: our certificate, instead of --tls.")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="PEM file: its key, instead of --tls.")]
CentralOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help=f"Where central listens; or {CENTRAL}, or a fleet's.")
]
ServerNameOption = Annotated[str, typer.Option(help="Name in central's certificate, if not the host's.")]


@dataclass(frozen=True, slots=True)
class Operator:
    """The options by which an operator's tool names a fleet and its certificate; see `operator_options`."""

    fleet: Annotated[str, typer.Option("--fleet", metavar="NAME", help=_FLEET)] = ""
    tls: FolderOption = None
    ca: CaOption = None
    cert: CertOption = None
    key: KeyOption = None
    name: Annotated[str, typer.Option("--name", help=_NAME)] = ""
    server_name: ServerNameOption = ""

    def address(self, central: str) -> CentralAddress:
        """Return which central is asked, and how; see `whitepanda.common.fleets.resolve`."""
        tls, *given = ("" if path is None else str(path) for path in (self.tls, self.ca, self.cert, self.key))
        return resolve(Fleet(central, tls, self.name, self.server_name, *given), self.fleet)


#: The default of a command's parameter `operator`.
OPERATOR = Operator()


def operator_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Operator` one by one, in place of its parameter `operator`."""
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Operator)
    ]

    @functools.wraps(command)
    def run(*values: Any, **given: Any) -> None:
        operator = Operator(**{option.name: given.pop(option.name) for option in options if option.name in given})
        command(*values, operator=operator, **given)

    signature = inspect.signature(command)
    shown = list[inspect.Parameter]()
    for parameter in signature.parameters.values():
        shown += options if parameter.name == "operator" else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    run.__dict__["__signature__"] = signature.replace(parameters=shown)
    return run


def files_of(folder: Path | None, name: str, *, ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles:
    """Return the files of a tool that is not an operator's, from flags or the environment's folder; else TlsError."""
    tls, *given = ("" if path is None else str(path) for path in (folder, ca, cert, key))
    return files_in([Fleet("", tls, name, "", *given), Fleet(tls=os.environ.get(TLS, ""), name=name)])
