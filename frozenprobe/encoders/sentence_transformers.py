"""The `st` adapter: a folder or hub repository in the layout of sentence-transformers.

Follows the adapter protocol of `registry.py`. Importing it imports neither torch nor sentence-transformers; the encoder
itself is `sentence_encoder.py`.
"""

from __future__ import annotations

from pathlib import Path

from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.huggingface import is_hub_id, require_folder_with
from frozenprobe.settings import EncoderSettings

MARKER = "modules.json"


class SentenceTransformersAdapter:
    """Claims whatever has a `modules.json` (30), which a plain transformers checkpoint never has."""

    scheme = "st"

    def sniff(self, path: str) -> int:
        """The priority of this adapter's claim on `path`; a hub id costs one look at the hub or its cache."""
        if Path(path).is_dir():
            return 30 if (Path(path) / MARKER).is_file() else 0
        return 30 if is_hub_id(path) and _hub_has_marker(path) else 0

    def load(self, settings: EncoderSettings, path: str) -> Encoder:
        """Loads the encoder.

        Raises:
            EncoderError: It is missing, damaged or unsupported.
        """
        from frozenprobe.encoders.sentence_encoder import load_sentence_encoder

        require_folder_with(path, MARKER)
        return load_sentence_encoder(settings, path)


def _hub_has_marker(repository: str) -> bool:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    # What the cache knows is taken at once: without a network, every question to the hub costs half a minute.
    known = try_to_load_from_cache(repository, MARKER)
    if known is not None:
        return isinstance(known, str)  # otherwise the mark that the repository has no such file
    try:
        hf_hub_download(repository, MARKER)
    except (OSError, HFValidationError):
        return False  # absent or unreachable: what is wrong with the repository itself, loading it will tell
    return True


adapter = SentenceTransformersAdapter()
