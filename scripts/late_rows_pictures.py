"""Draws the pictures of docs/bad-and-late-rows.md into docs/images/.

Each is a small SVG with a style sheet of its own, so that it can be read on a light and a dark
page. Files of 1,000 seconds each lie in the order in which they are read, and the watermark runs
over them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
_WIDTH: Final = 640
_LEFT: Final = 60
_BOX: Final = 92
_STEP: Final = 108
_BOTTOM: Final = 180
_SECOND: Final = 0.03  # of event time, in pixels
_STYLE: Final = """
text { font: 13px sans-serif; fill: #24292f; }
.axis { stroke: #57606a; fill: none; }
.rows { fill: #0969da; }
.late { fill: #cf222e; }
.mark { stroke: #1a7f37; stroke-width: 3; fill: none; }
.said { fill: #1a7f37; }
.lost { fill: #cf222e; font-weight: bold; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .axis { stroke: #8b949e; }
  .rows { fill: #58a6ff; }
  .late, .lost { fill: #ff7b72; }
  .mark { stroke: #56d364; }
  .said { fill: #56d364; }
}
"""


def picture(order: list[int], *, waits: bool = False, title: str) -> str:
    """Return a picture of files that are read one after the other.

    Args:
        order: for each file in which thousand of seconds its rows are.
        waits: whether the watermark waits for the end of the data.
        title: what is to be seen, for those who do not see it.
    """
    body, marks, watermark = [], [f"M{_LEFT},{_BOTTOM}"], 0
    for position, first in enumerate(order):
        x = _LEFT + 8 + position * _STEP
        is_late = (first + 1) * 1000 <= watermark
        top = _BOTTOM - (first + 1) * 1000 * _SECOND
        kind = "late" if is_late else "rows"
        height = round(900 * _SECOND)
        body.append(
            f'<rect class="{kind}" x="{x}" y="{top:.0f}" width="{_BOX}" height="{height}" rx="4"/>'
        )
        body.append(
            f'<text x="{x + _BOX / 2:.0f}" y="202" text-anchor="middle">batch {position}</text>'
        )
        if is_late:
            body.append(
                f'<text class="lost" x="{x + _BOX / 2:.0f}" y="{top - 6:.0f}" '
                'text-anchor="middle">400 late</text>'
            )
        end = x + _BOX + (_STEP - _BOX) / 2
        marks.append(f"H{end:.0f}")
        if not waits:
            watermark = max(watermark, (first + 1) * 1000 - 100)
            marks.append(f"V{_BOTTOM - watermark * _SECOND:.0f}")
    if waits:
        marks.append("V14")
    said = "the watermark waits for the end" if waits else "watermark"
    label_y = _BOTTOM - 6 if waits else 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 212" role="img">',
            f"<title>{title}</title><style>{_STYLE}</style>",
            f'<path class="axis" d="M{_LEFT},10 V{_BOTTOM} H{_WIDTH - 6}"/>',
            '<text transform="translate(30,150) rotate(-90)">event time</text>',
            *body,
            f'<path class="mark" d="{" ".join(marks)}"/>',
            f'<text class="said" x="{_LEFT + 14}" y="{label_y}">{said}</text>',
            "</svg>\n",
        ]
    )


PICTURES: Final = {
    "late-rows-copied.svg": picture(
        [1, 2, 3, 4, 0],
        title="The oldest file is read last: it is behind the watermark, and its rows are late",
    ),
    "late-rows-by-name.svg": picture(
        [0, 1, 2, 3, 4],
        title="The files are read by name: each is ahead of the watermark, and no row is late",
    ),
    "late-rows-none.svg": picture(
        [1, 2, 3, 4, 0],
        waits=True,
        title="The watermark stays at the beginning until all files are read: no row is late",
    ),
}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (IMAGES / name).write_text(drawn, encoding="utf-8")
