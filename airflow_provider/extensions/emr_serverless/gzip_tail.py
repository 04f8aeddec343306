"""The end of a compressed text, found with little memory and within bounds.

A gzip stream cannot be entered in the middle, so the whole of it is decompressed, step by step, and
only the end is kept. A few megabytes can be gigabytes of text: past :data:`MOST_TEXT_BYTES` nothing
more is read.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple, Protocol

KEPT_BYTES: Final = 256 << 10
"""How much of the text's end is kept: some thousand lines."""
MOST_TEXT_BYTES: Final = 4 << 30
"""How much text one look decompresses at most: about ten seconds of one core."""
_STEP_BYTES: Final = 1 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS


class Body(Protocol):
    """The methods by which a store's answer is read."""

    def read(self, amt: int, /) -> bytes:
        """Return the next bytes; none at the end."""


class Tail(NamedTuple):
    """The end of a text.

    Attributes:
        begin: its offset in the text, in bytes.
        data: from there on.
        is_whole: whether the text ends there; otherwise it was too long to be read further.
    """

    begin: int
    data: bytes
    is_whole: bool

    def lines_from(self, offset: int) -> tuple[tuple[str, ...], int]:
        """Return the whole lines from an offset on, as far as they are kept, and where they end."""
        data = self.data[max(0, offset - self.begin) :]
        if offset < self.begin:  # the first one has lost its beginning
            data = data[data.find(b"\n") + 1 :]
        end = data.rfind(b"\n") + 1
        lines = tuple(data[:end].decode(errors="replace").splitlines())
        return lines, max(offset, self.begin + len(self.data) - len(data) + end)


def gzip_tail(
    body: Body, *, kept_bytes: int = KEPT_BYTES, most_text_bytes: int = MOST_TEXT_BYTES
) -> Tail:
    """Return the end of a text that was compressed, in one gzip stream or several in a row.

    A stream that breaks off is read up to there: the writer may be at it.

    Raises:
        zlib.error: it is no gzip stream, or damaged.
    """
    unpacker, kept, total, packed = zlib.decompressobj(_GZIP), bytearray(), 0, b""
    while total < most_text_bytes:
        packed = packed or body.read(_STEP_BYTES)
        text = unpacker.decompress(packed, _STEP_BYTES) if packed else unpacker.flush()
        kept += text
        total += len(text)
        if len(kept) > 2 * kept_bytes:
            del kept[:-kept_bytes]
        if not packed:
            break
        packed = unpacker.unconsumed_tail
        if unpacker.eof:  # zeros may follow a stream, or another one
            packed = unpacker.unused_data.lstrip(b"\0")
            unpacker = zlib.decompressobj(_GZIP)
    data = bytes(kept[-kept_bytes:])
    return Tail(total - len(data), data, total < most_text_bytes)
