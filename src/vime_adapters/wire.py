"""One bounded HTTP call to an engine or a router, and the three ways it can fail.

Both clients of this package stand on it, so that what holds for one call holds for all of them: proxies and every
other setting of the environment are ignored (an engine is always reached directly), redirects are not followed,
every call has a time limit of its own in seconds, an API key shows up in no text, and httpx's own exceptions never
come out.

Every call opens a connection of its own (0.2 ms on one host). A kept one is a trap: after an error inside vLLM its
server answers 500 and then drops the connection without having said so (seen), so that the next call on it is reset,
and nobody knows whether it was carried out.

Time: connecting, sending and waiting share one limit, so a silent peer holds a call no longer than that; a peer that
trickles its answer is cut off between two pieces, and can hold a call for at most twice the limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import httpx
from attrs import frozen

from vime_core.errors import Code

ApiKey = str | Callable[[], str | None] | None
"""The key an engine was started with, or something to fetch it with at each call, or none."""

CONNECT_SECONDS = 5.0
"""Longest wait for a TCP connection, in seconds, even where the whole call may take longer."""

MAX_ANSWER_BYTES = 256 * 2**20
"""Longest answer read, in bytes; a rollout of 32,768 tokens with routed experts is some 20 MiB."""

_MAX_MESSAGE = 600


class VimeHttpError(Exception):
    """A call that did not go well: whom it asked (``url``), for what (``route``), and why it failed (``message``).

    ``status`` is the HTTP status of the answer, or None when none came.
    """

    code: ClassVar[Code] = Code.HTTP

    def __init__(self, url: str, route: str, status: int | None, message: str) -> None:
        self.url, self.route, self.status, self.message = url, route, status, message
        super().__init__(url, route, status, message)

    @property
    def reason(self) -> str:
        """What happened, in one line, without the code."""
        said = f"answered {self.status}: " if self.status is not None else ""
        return f"{self.url}{self.route} {said}{self.message}"

    def __str__(self) -> str:
        """The failure in one line that starts with its code."""
        return f"{self.code.id} {self.code.title} @ {self.reason} (hint: {self.code.remedy})"


class EngineRefused(VimeHttpError):  # noqa: N818 - these three say what happened
    """An engine answered, but not with what was asked for: another status than 2xx, or text we cannot read."""


class RouterRefused(VimeHttpError):  # noqa: N818
    """A router answered, but not with what was asked for."""

    code = Code.ROUTER_FAILED


class Unreachable(VimeHttpError):  # noqa: N818
    """Nobody answered. ``sent`` tells whether the request may have reached somebody.

    It is False when no connection was made (refused, no route, no such name, handshake timed out): then nothing has
    happened over there and the same call may be made again.
    """

    def __init__(self, url: str, route: str, message: str, sent: bool) -> None:
        super().__init__(url, route, None, message)
        self.sent = sent
        self.args = (url, route, message, sent)  # what pickle calls __init__ with, when it crosses processes


@frozen
class Answer:
    """A 2xx answer: its text, and readers that name what is missing in it."""

    wire: Wire
    route: str
    status: int
    text: str

    def json(self) -> dict[str, Any]:
        """Return the answer as a JSON object, or raise the wire's refusal."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            raise self.garbled(f"not JSON: {one_line(self.text, 120)!r}") from None
        if not isinstance(value, dict):
            raise self.garbled(f"not a JSON object: {one_line(self.text, 120)!r}")
        return value

    def field(self, name: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401 - checked by `kind`
        """Return one top-level field of the JSON answer, or raise the wire's refusal naming it.

        A bool is not taken for a number.
        """
        value = self.json().get(name, self)
        if value is self:
            raise self.garbled(f"no field `{name}`")
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.garbled(f"field `{name}` is {one_line(repr(value), 80)}")
        return value

    def garbled(self, message: str) -> VimeHttpError:
        """Return, for raising, the refusal that says what in this answer cannot be understood."""
        return self.wire.refused(self.wire.url, self.route, self.status, f"answer not understood: {message}")


class Wire:
    """A client for one base url. Safe to share between threads; close it, or use it in a ``with``.

    ``timeout`` is the default limit of a call in seconds. ``refused`` is the exception an answer outside 2xx becomes.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        *,
        api_key: ApiKey = None,
        refused: type[EngineRefused] | type[RouterRefused] = EngineRefused,
    ) -> None:
        self.url = base_url(url)
        self.timeout = timeout
        self.refused = refused
        self._api_key = api_key
        self._http = httpx.Client(
            trust_env=False,
            verify=self.url.startswith("https:"),  # plain http needs no certificate store, which takes 20 ms to read
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections. May be called twice."""
        self._http.close()

    def get(self, route: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Answer:
        """Ask for something; see ``call``."""
        return self.call("GET", route, params=params, timeout=timeout)

    def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str | int | Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Have something done; see ``call``."""
        return self.call("POST", route, params=params, body=body, timeout=timeout)

    def call(
        self,
        method: str,
        route: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        accept: tuple[int, ...] = (),
    ) -> Answer:
        """Make one call, once: nothing is ever repeated here.

        Raises ``Unreachable``, or the wire's refusal for any status outside 2xx that is not in ``accept``.
        """
        limit = self.timeout if timeout is None else timeout
        key = self._key()
        try:
            status, text = self._exchange(method, route, params, body, key, limit)
        except httpx.HTTPError as error:
            raise self._unreachable(route, error, limit, key) from None
        if 200 <= status < 300 or status in accept:
            return Answer(self, route, status, text)
        raise self.refused(self.url, route, status, _mask(message_of(text), key))

    def _exchange(
        self,
        method: str,
        route: str,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        key: str | None,
        limit: float,
    ) -> tuple[int, str]:
        """Send one request and read the answer, piece by piece, while time lasts."""
        end = monotonic() + limit
        seconds = httpx.Timeout(limit, connect=min(CONNECT_SECONDS, limit)).as_dict()

        def shrink(_event: str, _info: object) -> None:
            """Leave each stage of the call only what the stages before it did not use."""
            seconds["read"] = seconds["write"] = max(end - monotonic(), 0.001)

        request = self._http.build_request(
            method,
            self.url + route,
            params=params,
            json=body,
            headers={"authorization": f"Bearer {key}"} if key else {},
            extensions={"timeout": seconds, "trace": shrink},
        )
        response = self._http.send(request, stream=True)
        pieces, size = [], 0
        try:
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise httpx.ReadError(f"answer longer than {MAX_ANSWER_BYTES} bytes")
                if monotonic() > end:
                    raise httpx.ReadTimeout("answer still coming")
        finally:
            response.close()
        return response.status_code, b"".join(pieces).decode("utf-8", "replace")

    def _unreachable(self, route: str, error: httpx.HTTPError, limit: float, key: str | None) -> Unreachable:
        """Put httpx's exception into our words."""
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if isinstance(error, httpx.TimeoutException):
            message = f"gave no answer within {limit:.3g} s" if sent else f"gave no connection within {limit:.3g} s"
        else:
            message = f"{'broke off' if sent else 'could not be connected to'}: {one_line(str(error), 200)}"
        return Unreachable(self.url, route, _mask(message, key), sent)

    def _key(self) -> str | None:
        """Fetch the API key; ValueError, without showing it, where no header could hold it."""
        key = self._api_key() if callable(self._api_key) else self._api_key
        if key and not (key.isascii() and key.isprintable()):
            raise ValueError("the API key holds characters that no HTTP header can")
        return key


def base_url(url: str) -> str:
    """Return the url without a trailing slash; ValueError unless it is http(s)://host[:port][/path].

    A url with a user name, a query or a fragment is refused without being shown: it may hold a secret.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("a server's url holds no user name, query or fragment")
    try:
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        whole = False
    if not whole:
        raise ValueError(f"not a server's url: {one_line(repr(url), 120)}; write http://HOST:PORT")
    return url.rstrip("/")


def message_of(text: str) -> str:
    """Return what a server's error body says, as one bounded line.

    Knows vLLM's ``{"error": {"message": ...}}``, its development routes' ``{"error": "..."}``, FastAPI's
    ``{"detail": ...}`` and plain text, which is what vllm-router answers with.
    """
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return one_line(text) or "(empty answer)"
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    return one_line(body if isinstance(body, str) else json.dumps(body))


def one_line(text: str, limit: int = _MAX_MESSAGE) -> str:
    """Return the text as one printable line of at most ``limit`` characters."""
    line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _mask(text: str, key: str | None) -> str:
    """Hide the API key in a text that came from elsewhere."""
    return text.replace(key, "***") if key else text
