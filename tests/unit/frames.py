"""A base for what stands for a Spark frame: for the type checker it is one, and else nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as FrameBase
else:
    FrameBase = object

__all__ = ["FrameBase"]
