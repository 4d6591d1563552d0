"""Why a stream to central ended, in one line with the remedy: from gRPC's status and text."""

from typing import NamedTuple

import grpc

from agent.config import UplinkSection
from whitepanda.common.protocol import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, version_span
from whitepanda.common.texts import printable
from whitepanda.common.tls import is_of_another_ca, not_grpc

_MAX_DETAILS = 1000  # of gRPC's text


class Outage(NamedTuple):
    """Why there is no stream. `refused`: trying again soon will not help; someone has to act."""

    message: str
    refused: bool = False
    is_tls: bool = False
    too_large: bool = False  # it sent a message larger than is taken
    broke_off: bool = False  # before central said anything, as if it does not accept our certificate


# What gRPC's end of a stream means: by status code, then by what its text says of the TLS handshake.
_BY_CODE = {
    grpc.StatusCode.UNAUTHENTICATED: "certificate",
    grpc.StatusCode.PERMISSION_DENIED: "who_we_are",
    grpc.StatusCode.FAILED_PRECONDITION: "protocol",
    grpc.StatusCode.UNIMPLEMENTED: "protocol",
    grpc.StatusCode.INVALID_ARGUMENT: "content",
    grpc.StatusCode.ABORTED: "replaced",
}
_BY_TEXT = (
    ("client: received message larger than max", "large"),
    ("hostname verification", "name"),
    ("peer name", "name"),
    ("certificate_verify_failed", "signer"),
    ("certificate verify failed", "signer"),
    ("handshake", "handshake"),
    # TLS 1.3: our handshake is over before central has looked at our certificate, so a refusal is no TLS error here.
    ("socket closed", "closed"),
)
_REFUSALS = {
    "who_we_are": (
        "central {address} refuses this host",
        "the certificate must name this host ({host}); `whitepanda pki host` makes one",
    ),
    "certificate": ("central {address} refuses the certificate {certificate}", "issue a new one with `whitepanda pki`"),
    "protocol": (
        "central {address} refuses the protocol",
        f"this agent speaks version {version_span(MIN_PROTOCOL_VERSION, PROTOCOL_VERSION)}; upgrade the older side",
    ),
    "replaced": (
        "central {address} has closed the stream",
        "another agent or tool speaks under the same name; give each its own certificate and {host}",
    ),
    "large": (
        "central {address} sends a message larger than uplink.max_message_mib allows",
        "no central needs that for the jobs of one host; is it the right one?",
    ),
    "content": ("central {address} refuses what was sent", "see central's log"),
    "name": (
        "the certificate of central does not name {address}",
        "set {server_name} to a name in it, or issue it with `whitepanda pki central --address`",
    ),
    "signer": (
        "the certificate of central {address} does not verify",
        "check that the configured CA has signed it, and both clocks",
    ),
    "handshake": (
        "the TLS handshake with central {address} fails",
        "check the certificates of both sides with `whitepanda pki show`, and that the port is central's",
    ),
    "closed": (
        "central {address} closes the connection right after TLS",
        (
            "it may not accept this host's certificate {certificate} (another CA, its clock): compare it with "
            "central.tls.ca by `whitepanda pki show`; or central is just being restarted"
        ),
    ),
}
_TLS_KINDS = ("who_we_are", "certificate", "name", "signer", "handshake", "closed")
_SETTINGS = {"host": "agent.host", "server_name": "uplink.server_name"}
_OPTIONS = {"host": "--name", "server_name": "--server-name"}


def explain(
    section: UplinkSection, code: grpc.StatusCode | None, details: str, *, heard: bool = False, is_tool: bool = False
) -> Outage:
    """Turn gRPC's end of a stream, its status and text, into one line with the remedy.

    `heard`: whether central said anything in it. `is_tool`: name a tool's options, not an agent's settings.
    """
    address = section.address
    details = printable(" ".join(details.split()))[:_MAX_DETAILS] or "no details"
    if why := not_grpc(details):
        return Outage(f"central {address} {why}; see {'--central' if is_tool else 'uplink.address'}", refused=True)
    if is_of_another_ca(details):
        message = f"the certificate of central {address} is not of the CA in {section.tls.ca}"
        setting = "--tls or --ca" if is_tool else "uplink.tls.ca"
        remedy = f"is it of another fleet? Give the CA that issued it ({setting}), or another address"
        return Outage(f"{message}; {remedy}", refused=True, is_tls=True)
    lower = details.lower()
    kind = _BY_CODE.get(code) if code else None
    kind = kind or next((kind for text, kind in _BY_TEXT if text in lower), None)
    if kind == "closed" and heard:
        kind = None
    if kind is not None:
        what, remedy = _REFUSALS[kind]
        names = {"address": address, "certificate": section.tls.certificate} | (_OPTIONS if is_tool else _SETTINGS)
        message = f"{what.format(**names)}: {details}; {remedy.format(**names)}"
        # What merely breaks off may be a central that is just being restarted.
        broke_off = kind == "closed" or (kind == "handshake" and "ssl" not in lower)
        return Outage(
            message, refused=not broke_off, is_tls=kind in _TLS_KINDS, broke_off=broke_off, too_large=kind == "large"
        )
    if code in (None, grpc.StatusCode.OK):
        return Outage(f"central {address} ended the stream")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # such as by its quotas: it is there, and trying again is right
        return Outage(f"central {address} refuses for now: {details}")
    return Outage(f"central {address} is away: {code.name.lower()}: {details}")
