"""The contract of sources: files, and a data source in Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider.runtime.api.sources import Source
from airflow_provider.runtime.sources.shorthand import source_of_format
from airflow_provider.runtime.testing.sources import ROWS, SourceContract

pytestmark = [pytest.mark.spark, pytest.mark.long]

JOBS = Path(__file__).parent / "source_jobs.py"


class Files:
    """A folder of CSV, a file a piece."""

    entry = f"{JOBS}:csv_files"

    def __init__(self, root: Path) -> None:
        self._folder = root / "in"
        self._folder.mkdir()
        self.params = {"input": str(self._folder)}

    def open(self) -> Source:
        return source_of_format("csv", str(self._folder), "id long")

    def append(self, first: int) -> None:
        file = self._folder / f"{first:05}.csv"
        file.write_text("".join(f"{n}\n" for n in range(first, first + ROWS)))
        os.utime(file, (1_767_225_600 + first, 1_767_225_600 + first))


class TestFiles(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Files:
        return Files(tmp_path)


class Numbers:
    """The lines of a file, which a data source in Python reads."""

    entry = f"{JOBS}:in_python"

    def __init__(self, root: Path) -> None:
        self._file = root / "numbers"
        self.params = {"input": str(self._file)}

    def open(self) -> Source:
        return source_of_format("numbers-of-a-file", options={"file": str(self._file)})

    def append(self, first: int) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(f"{n}\n" for n in range(first, first + ROWS))


class TestInPython(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Numbers:
        return Numbers(tmp_path)
