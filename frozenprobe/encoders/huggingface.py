"""The `hf` adapter: a hub id or a local folder in the layout of transformers.

Follows the adapter protocol of `registry.py`. Importing it imports neither torch nor transformers; the encoder itself
is `transformer.py`, loaded by `loading.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from frozenprobe.encoders.base import Encoder
from frozenprobe.errors import EncoderError
from frozenprobe.settings import EncoderSettings

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")


def is_hub_id(path: str) -> bool:
    """True for `name` or `owner/name` that nothing on disk answers to."""
    return bool(_HUB_ID.fullmatch(path)) and not path.endswith((".", "/")) and not Path(path).exists()


class HuggingFaceAdapter:
    """Claims folders with a `config.json` (20) and whatever looks like a hub id (10)."""

    scheme = "hf"

    def sniff(self, path: str) -> int:
        """The priority of this adapter's claim on `path`; 0: none."""
        if (Path(path) / "config.json").is_file():
            return 20
        return 10 if is_hub_id(path) else 0

    def load(self, settings: EncoderSettings, path: str) -> Encoder:
        """Loads the encoder.

        Raises:
            EncoderError: It is missing, damaged or unsupported.
        """
        from frozenprobe.encoders.loading import load_transformer

        require_folder_with(path, "config.json")
        return load_transformer(settings, path)


def require_folder_with(path: str, marker: str) -> None:
    """Checks that a local path is a folder with the given file; hub ids pass.

    Raises:
        EncoderError: It is not.
    """
    folder = Path(path)
    if folder.is_dir() and not (folder / marker).is_file():
        raise EncoderError(f"the folder {path} has no {marker}: {contents(folder)}")
    if folder.is_file():
        raise EncoderError(f"{path} is a file: give the folder that holds it")
    if not folder.exists() and not is_hub_id(path):
        raise EncoderError(f"there is no folder {path}, and it is not a hub id either")


def contents(folder: Path) -> str:
    """What a folder holds, in a few words."""
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "it is empty"
    return f"it holds {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"


adapter = HuggingFaceAdapter()
