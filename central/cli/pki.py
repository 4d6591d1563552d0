"""`whitepanda pki`: a small certificate authority for sites that have none."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from central.cli.shared.outputs import grid, report, say
from central.pki import CA_DAYS, LEAF_DAYS, REVOKED, CertificateInfo, describe, issue, make_ca, renew, revoke
from whitepanda.common.errors import TlsError
from whitepanda.common.tls import CERTIFICATE_WARN_DAYS, TlsFiles

app = typer.Typer(
    help="Certificates for mTLS: a small CA, central's certificate, one per host, and those of the tools.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="Folder of the CA and of what it issues.", show_default=False)]
Days = Annotated[int, typer.Option(help="Valid for this many days, and never longer than the CA.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.command("init")
def init(
    directory: Folder,
    *,
    days: Annotated[int, typer.Option(help="The CA is valid for this many days.")] = CA_DAYS,
    force: Force = False,
) -> None:
    """Make the CA: ca.crt, which every machine gets, and ca.key, which stays here."""
    path = make_ca(directory, days=days, force=force)
    say(f"{path}: goes to every host and to central")
    say(f"{path.with_suffix('.key')}: stays here, is needed for new certificates only, keep it offline")


@app.command("central")
def central(
    directory: Folder,
    *,
    name: Annotated[list[str], typer.Option(help="Central's name; the first names the files. May be repeated.")] = [  # noqa: B006 - typer's way to give a list its default
        "central"
    ],
    address: Annotated[
        list[str] | None,
        typer.Option(help="A DNS name or IP address by which agents reach it. May be repeated.", show_default=False),
    ] = None,
    days: Days = LEAF_DAYS,
    force: Force = False,
) -> None:
    """Issue central's certificate. Agents check that it names the address that they connect to."""
    first, *others = name
    addresses = [*others, *(address or ())]
    files = issue(directory, first, server=True, addresses=addresses, days=days, force=force)
    _say_issued(files, "central")


@app.command("host")
def host(
    directory: Folder,
    names: Annotated[list[str], typer.Argument(help="Names of hosts, as in agent.host.", show_default=False)],
    *,
    days: Days = LEAF_DAYS,
    force: Force = False,
) -> None:
    """Issue certificates of hosts. A host speaks for the name in its certificate only."""
    for name in names:
        _say_issued(issue(directory, name, days=days, force=force), f"host {name}")


def _issue_to(users: str, role: str) -> Callable[..., None]:
    """Return a command that issues a client's certificate, whose name is usually that of its role."""

    def command(
        directory: Folder,
        *,
        name: Annotated[str, typer.Option(help=f"A name listed in central.{role}s.")] = role,
        days: Days = LEAF_DAYS,
        force: Force = False,
    ) -> None:
        _say_issued(issue(directory, name, days=days, force=force), users)

    return command


app.command("operator", help="Issue the certificate of people and tools that use the fleet API.")(
    _issue_to("users of the fleet API", "operator")
)
app.command("importer", help="Issue the certificate of `whitepanda replay`, which may submit rows of any machine.")(
    _issue_to("users of `whitepanda replay`", "importer")
)


@app.command("renew")
def renew_(
    directory: Folder,
    names: Annotated[list[str], typer.Argument(help="Names of certificates, NAME.crt there.", show_default=False)],
    *,
    days: Days = LEAF_DAYS,
) -> None:
    """Renew certificates: the same names, purpose and key, so only NAME.crt changes and has to be copied."""
    for name in names:
        before = renew(directory, name, days=days)
        path = Path(directory, f"{name}.crt")
        say(
            f"{path}: valid until {describe(path).not_after:%Y-%m-%d} (before: {before.not_after:%Y-%m-%d}, serial "
            f"{before.serial}); replaces the one before"
        )


@app.command("revoke")
def revoke_(
    certificates: Annotated[list[Path], typer.Argument(help="Certificates (PEM) to revoke.", show_default=False)],
    *,
    into: Annotated[
        Path | None,
        typer.Option("--list", help="The list of serials.", show_default="revoked.txt next to each certificate"),
    ] = None,
) -> None:
    """Add certificates to the list of serials that central refuses (central.revoked_serials)."""
    for certificate in certificates:
        file = into or certificate.parent / REVOKED
        is_new = revoke(certificate, file)
        serial = describe(certificate).serial
        what = "central.revoked_serials must name this file or a copy" if is_new else "it was there already"
        say(f"{certificate}: serial {serial} is in {file}; {what}")


@app.command("show")
def show(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR", help="Certificates, PEM; of a folder all its *.crt.", show_default=False),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON list for programs.")] = False,
) -> None:
    """Show whose certificates these are, what for, and until when."""
    found = {str(path): describe(path) for given in files for path in _certificates(given)}
    times = ("not_before", "not_after")
    facts = [
        {"file": path, **dataclasses.asdict(info), **{name: getattr(info, name).isoformat() for name in times}}
        for path, info in found.items()
    ]
    report(facts, (each for path, info in found.items() for each in (Text(path, "bold"), _table(info))), json=json)


def _certificates(path: Path) -> list[Path]:
    """Return the certificates of a folder, the CA first; else the file itself."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.crt"), key=lambda file: (file.name != "ca.crt", file.name))
    if not found:
        raise TlsError(f"{path}: no certificates here (*.crt); name a file, or the folder of `whitepanda pki`")
    return found


def _say_issued(files: TlsFiles, to: str) -> None:
    say(f"{files.certificate}, {files.key}: go to {to}, with {files.ca}")


def _table(info: CertificateInfo) -> Table:
    left = Text(f"{info.days_left} days left", "yellow" if info.days_left < CERTIFICATE_WARN_DAYS else "")
    if info.days_left < 0:
        left = Text("expired", "bold red")
    rows = (
        ("  names", ", ".join(info.names) or "-"),
        ("  for", "authority" if info.is_ca else ", ".join(info.purposes) or "-"),
        ("  valid", Text(f"{info.not_before:%Y-%m-%d} to {info.not_after:%Y-%m-%d}, ") + left),
        ("  subject", info.subject or "-"),
        ("  issuer", info.issuer),
        ("  serial", info.serial),
        ("  SHA-256", info.sha256),
    )
    return grid("", "", rows=rows, show_header=False, box=None, pad_edge=False)
