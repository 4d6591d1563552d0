"""Posts a message to a webhook receiver: signed, with a deadline, without following redirections."""

import asyncio
import hashlib
import hmac
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from whitepanda.common.errors import ConfigError, TlsError
from whitepanda.common.files.private import read_secret

TIMESTAMP = "X-Whitepanda-Timestamp"
SIGNATURE = "X-Whitepanda-Signature"
#: Statuses that refuse this very message. Others may pass: a wrong path or password is mended while notices wait.
_REFUSALS = frozenset({400, 413, 415, 422})
_MAX_DELAY_S = 3600.0  # that a receiver may ask for


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer to a message."""

    why: str = ""  # it was not taken; "" if it was
    is_final: bool = False  # it will never be taken
    delay_s: float = 0.0  # how long the receiver asks to be left alone


class Sender:
    """Posts to one URL, over connections that it keeps.

    `ca` is a PEM file of the CAs of the receiver's certificate; "" for the system's. `secret_file` has the key of
    signatures and is read for each message, so it may change; "" for no signature. `timeout_s` is from connecting to
    the end of the answer. Raises ConfigError if the URL or `secret_file` cannot be used, TlsError if `ca` cannot.
    """

    def __init__(self, url: str, *, ca: str = "", secret_file: str = "", timeout_s: float = 10.0) -> None:
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"webhooks.urls: the one to {receiver_names((url,))[0]}: {error}") from error
        self._secret_file = Path(secret_file) if secret_file else None
        self._timeout_s = timeout_s
        if self._secret_file is not None:
            read_secret(self._secret_file, "webhooks.secret_file")
        # No proxy and no password from the environment: only the configuration counts.
        self._client = httpx.AsyncClient(
            verify=_context(ca),
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            headers={"User-Agent": "whitepanda-central"},
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def post(self, message: str) -> Answer:
        """Post a message once; the answer has whatever goes wrong."""
        body = message.encode()
        headers = {"Content-Type": "application/json"}
        try:
            if self._secret_file is not None:
                timestamp = str(int(time.time()))
                signature = sign(read_secret(self._secret_file, "webhooks.secret_file"), timestamp, body)
                headers |= {TIMESTAMP: timestamp, SIGNATURE: signature}
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                return _answer(response)  # its body is not read
        except TimeoutError:
            return Answer(f"no answer in {self._timeout_s:g} s")
        except ConfigError as error:
            return Answer(str(error))
        except (httpx.HTTPError, OSError) as error:  # a TLS alert after the handshake comes as it is
            return Answer(" ".join(str(error).split())[:200] or type(error).__name__)


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the value of the header `SIGNATURE`: HMAC-SHA256, in hexadecimal, over TIMESTAMP "." BODY."""
    digest = hmac.new(secret, timestamp.encode("ascii") + b"." + body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"


def receiver_names(urls: tuple[str, ...]) -> list[str]:
    """Return a name for each URL, for logs and metrics, without its secrets: host and port, numbered if ambiguous."""
    names: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        name = parts.netloc.rpartition("@")[2]
        same = sum(each.partition("#")[0] == name for each in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


def _context(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # ssl.SSLError is one
        raise TlsError(
            f"webhooks.ca {ca}: cannot be used: {error.strerror or error}; give a PEM file of CA certificates"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _answer(response: httpx.Response) -> Answer:
    if response.is_success:
        return Answer()
    why = f"answered {response.status_code} {response.reason_phrase}".strip()
    if response.is_redirect:
        why += "; webhooks.urls must be where it is, redirections are not followed"
    asked = response.headers.get("Retry-After", "")
    # A date is ignored: then the usual back-off applies.
    delay_s = min(float(asked), _MAX_DELAY_S) if asked.isascii() and asked.isdigit() else 0.0
    return Answer(why[:200], response.status_code in _REFUSALS, delay_s)
