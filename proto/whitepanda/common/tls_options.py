"""The options by which tools are given their TLS files: the same names in every command.

Not in `cli`, which must not import gRPC (see `cli.main`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whitepanda.common.errors import TlsError
from whitepanda.common.tls import TlsFiles

__all__ = [
    "CaOption",
    "CentralOption",
    "CertOption",
    "FolderOption",
    "KeyOption",
    "OperatorOption",
    "ServerNameOption",
    "files_of",
]

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--tls", metavar="DIR", help="Folder of `whitepanda pki`: ca.crt, NAME.crt and NAME.key are taken."
    ),
]
CaOption = Annotated[
    Path | None, typer.Option("--ca", help="PEM file: CA of central's certificate, instead of --tls.")
]
CertOption = Annotated[
    Path | None, typer.Option("--cert", help="PEM file: our certificate, instead of --tls.")
]
KeyOption = Annotated[Path | None, typer.Option("--key", help="PEM file: its key, instead of --tls.")]
CentralOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where central listens.")]
OperatorOption = Annotated[
    str, typer.Option("--name", help="The name in our certificate, one of central's operators.")
]
ServerNameOption = Annotated[str, typer.Option(help="Name in central's certificate, if not the host's.")]


def files_of(
    folder: Path | None, name: str, *, ca: Path | None, cert: Path | None, key: Path | None
) -> TlsFiles:
    """Return the three files; those that are not given are of the folder.

    Raises:
        TlsError: one is not given, and no folder is, or not in it.

    """

    def path(given: Path | None, file: str) -> str:
        if given is not None:
            return str(given)
        if folder is None:
            raise TlsError("give --tls DIR (of `whitepanda pki`), or --ca, --cert and --key")
        try:
            (folder / file).open("rb").close()
        except OSError as error:
            remedy = "make it with `whitepanda pki`, or give --ca, --cert and --key"
            raise TlsError(f"--tls: cannot read {folder / file}: {error.strerror}; {remedy}") from error
        return str(folder / file)

    return TlsFiles(
        ca=path(ca, "ca.crt"), certificate=path(cert, f"{name}.crt"), key=path(key, f"{name}.key")
    )
