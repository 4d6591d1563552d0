"""The options by which tools are given their TLS files: the same names in every command.

Not in `cli`, which must not import gRPC (see `cli.main`).
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from whitepanda.common.fleets import CENTRAL, FLEET, TLS, Asked, Fleet, files_in, resolve
from whitepanda.common.tls import TlsFiles

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--tls", metavar="DIR", help=f"Folder of `whitepanda pki`: ca.crt, NAME.crt and NAME.key are taken; or {TLS}."
    ),
]
CaOption = Annotated[Path | None, typer.Option("--ca", help="PEM file: CA of central's certificate, instead of --tls.")]
CertOption = Annotated[Path | None, typer.Option("--cert", help="PEM file: our certificate, instead of --tls.")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="PEM file: its key, instead of --tls.")]
CentralOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help=f"Where central listens; or {CENTRAL}, or a fleet's.")
]
FleetOption = Annotated[
    str,
    typer.Option(
        "--fleet",
        metavar="NAME",
        help=f"A fleet of your config.toml in ~/.config/whitepanda; or {FLEET}, or its default.",
    ),
]
OperatorOption = Annotated[
    str,
    typer.Option(
        "--name", help="The name in our certificate, one of central's operators; default: the fleet's, or operator."
    ),
]
ServerNameOption = Annotated[str, typer.Option(help="Name in central's certificate, if not the host's.")]


def asked_of(
    central: str,
    fleet: str,
    folder: Path | None,
    name: str,
    server_name: str,
    *,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
) -> Asked:
    """Return whom a command asks, from its options; see `whitepanda.common.fleets.resolve`."""
    tls, *given = ("" if path is None else str(path) for path in (folder, ca, cert, key))
    return resolve(Fleet(central, tls, name, server_name, *given), fleet)


def files_of(folder: Path | None, name: str, *, ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles:
    """Return the three files of a tool that is no operator, from the flags or the environment's folder.

    Raises:
        TlsError: one is not given, or not in its folder.

    """
    tls, *given = ("" if path is None else str(path) for path in (folder, ca, cert, key))
    return files_in([Fleet("", tls, name, "", *given), Fleet(tls=os.environ.get(TLS, ""), name=name)])
