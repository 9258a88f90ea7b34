"""Where pooled vectors end up: one float32 array per view over the rows of all inputs, filled in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from frozenprobe.features.base import ExtractionReport, Features, View

_COPY_ROWS = 4096


class Output:
    """The arrays of an extraction.

    A distinct input's vector is written straight to the row where it occurs first, and copied to its other rows at
    the end: no second copy of the features ever exists.
    """

    def __init__(self, views: Sequence[View], sizes: Sequence[int], width: int) -> None:
        """Allocates nothing yet: a view's width is known with its first vectors (`width` if it never gets any)."""
        self.views = tuple(views)
        self._width = width
        self._offsets = np.cumsum([0, *sizes])
        self._arrays: dict[View, np.ndarray] = {}

    def put(self, view: View, rows: Int[np.ndarray, " k"], vectors: Float[np.ndarray, "k d"]) -> None:
        """Writes vectors to rows."""
        if view not in self._arrays:
            self._arrays[view] = np.empty((self._offsets[-1], vectors.shape[1]), dtype=np.float32)
        self._arrays[view][rows] = vectors

    def get(self, view: View, rows: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k d"]:
        """A copy of rows written before."""
        return self._arrays[view][rows]

    def locate(self, row: int) -> tuple[int, int]:
        """The input that a row belongs to, and its index there."""
        number = int(np.searchsorted(self._offsets, row, side="right")) - 1
        return number, row - int(self._offsets[number])

    def finish(self, sources: Int[np.ndarray, " n"], report: ExtractionReport) -> list[Features]:
        """Fills the rows that repeat an earlier one, and hands out the part of each input."""
        repeated = np.flatnonzero(sources != np.arange(len(sources)))
        for view in self.views:
            array = self._arrays.setdefault(view, np.empty((self._offsets[-1], self._width), dtype=np.float32))
            for start in range(0, len(repeated), _COPY_ROWS):
                rows = repeated[start : start + _COPY_ROWS]
                array[rows] = array[sources[rows]]
        return [
            Features({view: self._arrays[view][start:end] for view in self.views}, report)
            for start, end in zip(self._offsets[:-1], self._offsets[1:], strict=True)
        ]
