"""The `crossbert` adapter: a training checkpoint becomes an encoder that frozenprobe measures, as it is.

Follows the adapter protocol of `frozenprobe.encoders.registry`. Importing it imports neither torch nor transformers; the
encoder itself is `encoder.py`. Exported folders are plain transformers folders, and go to frozenprobe's own `hf`.
"""

from __future__ import annotations

from pathlib import Path

from crossbert.reading import find_checkpoint, is_training_checkpoint
from frozenprobe.encoders.base import Encoder
from frozenprobe.settings import EncoderSettings


class CrossBertAdapter:
    """Claims runs and their step folders (30)."""

    scheme = "crossbert"

    def sniff(self, path: str) -> int:
        """The priority of this adapter's claim on `path`; 0: none."""
        return 30 if is_training_checkpoint(Path(path)) else 0

    def load(self, settings: EncoderSettings, path: str) -> Encoder:
        """Loads the newest complete step of a run, or the step named.

        Raises:
            EncoderError: It is incomplete, damaged, or cannot run as asked.
        """
        folder = find_checkpoint(Path(path))

        from crossbert.encoder import load_checkpoint

        return load_checkpoint(settings, folder)


adapter = CrossBertAdapter()
