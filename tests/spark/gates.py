"""A gate that a job's function waits at, in whatever process, until a test lets it pass."""

from __future__ import annotations

from pathlib import Path


class Gate:
    """Lets values pass up to a word; for jobs of ``failing_jobs.py``.

    Args:
        folder: is made; what comes to the gate leaves a note in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.say(0)

    def say(self, word: int | str) -> None:
        """Let values below *word* pass; with ``fail`` the next one raises."""
        written = self.folder / "word.new"
        written.write_text(str(word), encoding="utf-8")
        written.replace(self.folder / "word")

    def holders(self, value: int) -> list[int]:
        """Return the PIDs of the processes that have come to the value, the last one last."""
        notes = sorted(self.folder.glob(f"{value}.*"), key=lambda note: note.stat().st_mtime_ns)
        return [int(note.suffix[1:]) for note in notes]
