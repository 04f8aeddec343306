"""Shown address: an address, or a text with addresses, without the credentials in it. Pure."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "…"
# The part before the @ is a container, not a user.
_CONTAINERS: Final = re.compile(r"(abfs|abfss|wasb|wasbs)://[^/:@]+@", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:(?:[a-z][a-z0-9+.-]*:)+/{1,2})*", re.IGNORECASE)
_HTTP: Final = re.compile(r"(.*:)?https?:")
_HOSTS: Final = re.compile(r"(\[[0-9a-f:.]*\]|[^:@\[\]]*)(:\d*)?(,[^:@]+(:\d*)?)*", re.IGNORECASE)
_WORDS: Final = "pass(?:word|wd|phrase)?|pwd|secret|token|credential|api_?key|access_?key|signature"
_VALUE: Final = r"(?:'[^']*'|\"[^\"]*\"|[^\s&;,'\")}]+)"
_NAMED: Final = re.compile(rf"(\b\w*(?:{_WORDS})\w*\s*=\s*){_VALUE}", re.IGNORECASE)
# Of other texts only what no sentence says: a lease has a token.
_NAMED_IN_TEXT: Final = re.compile(
    rf"(\b\w*(?:password|passwd|pwd|secret|api_?key|access_?key)=){_VALUE}", re.IGNORECASE
)
_OPTIONS: Final = re.compile(r"\?[\w.%-]+=.*", re.DOTALL)
_IN_TEXT: Final = re.compile(r"([a-z][a-z0-9+.-]*://)([^\s/@'\"]*:[^\s/@'\"]*)@", re.IGNORECASE)


def shown_address(address: str) -> str:
    """Return an address as messages show it: without user, password and what its options say.

    A password in it may have any character, so what stands before the last ``@`` is left out,
    unless it is certainly a part of a path.

    Args:
        address: a URL, a DSN such as ``host=db password=x``, or any text given in place of one.
    """
    if _CONTAINERS.match(address):
        return _without_options(address)
    scheme = _SCHEME.match(address)[0]  # type: ignore[index]  # none is a match, too
    rest = address[len(scheme) :]
    before, at, after = rest.rpartition("@")
    if at and not _is_path(scheme, before):
        rest = f"{HIDDEN}@{after}"
    return _without_options(f"{scheme}{rest}")


def without_credentials(text: str) -> str:
    """Return a text, such as the message of a library, without the credentials of its addresses."""
    return _IN_TEXT.sub(rf"\1{HIDDEN}@", _NAMED_IN_TEXT.sub(rf"\1{HIDDEN}", text))


def _is_path(scheme: str, before: str) -> bool:
    """Whether an ``@`` after this part of an address stands in its path."""
    if _HTTP.match(scheme):
        return False
    host = re.split(r"[/?#]", before, maxsplit=1)[0]
    if not scheme.endswith("//"):
        return "/" in before and ":" not in before
    return len(host) < len(before) and _HOSTS.fullmatch(host) is not None


def _without_options(address: str) -> str:
    return _NAMED.sub(rf"\1{HIDDEN}", _OPTIONS.sub(f"?{HIDDEN}", address))
