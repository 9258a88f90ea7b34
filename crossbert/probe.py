"""The `crossbert` adapter: what training or export left behind becomes an encoder that frozenprobe measures, as it is.

`crossbert:nano` is the small CrossBERT that ships with this package.

Follows the adapter protocols of `frozenprobe.encoders.registry`. Importing it imports neither torch nor transformers; the
encoder itself is `encoder.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from crossbert.reading import find_checkpoint, is_training_checkpoint, is_unfinished_step
from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.huggingface import is_hub_id
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings

NANO = Path(__file__).parent / "nano"


class CrossBertAdapter:
    """Claims runs, their step folders, and exported folders (30); a hub id needs the scheme, or goes to `hf`."""

    scheme = "crossbert"

    def sniff(self, path: str) -> int:
        """The priority of this adapter's claim on `path`; 0: none."""
        return 30 if is_training_checkpoint(Path(path)) or _is_exported(path) else 0

    def is_incomplete(self, path: str) -> bool:
        """Whether a folder is a training's step that was never finished, or is being written or dropped right now."""
        return is_unfinished_step(Path(path)) and not _is_exported(path)

    def load(self, settings: EncoderSettings, path: str) -> Encoder:
        """Loads the newest complete step of a run, the step named, or what was exported.

        Raises:
            EncoderError: It is incomplete, damaged, or cannot run as asked.
        """
        path = str(NANO) if path == "nano" else path
        if is_hub_id(path) and "/" not in path:  # asking the hub for it would take half a minute
            raise EncoderError(
                f"--ckpt crossbert:{path}: there is no such folder; what ships with the package: crossbert:nano; "
                "a hub id is owner/name"
            )
        exported = _is_exported(path) or is_hub_id(path)
        folder = None if exported else find_checkpoint(Path(path))

        from crossbert.encoder import load_checkpoint, load_exported

        return load_exported(settings, path) if folder is None else load_checkpoint(settings, folder)


def _is_exported(path: str) -> bool:
    """Whether a folder's config.json is of transformers' type `crossbert`."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "crossbert"


adapter = CrossBertAdapter()
