"""Who claims `--ckpt`: finds the adapter for a checkpoint and lets it load.

An adapter is an object with `scheme`, `sniff(path)` and `load(settings, path)`, named in the entry-point group
`frozenprobe.encoders`; this package's own two stand there as any plug-in's does. `scheme:path` is explicit; otherwise
every adapter is asked and the highest claim wins. By convention 10 is a claim by the shape of the name, 20 by a general
file such as config.json, 30 by a marker that only one kind of checkpoint has. Nothing heavy is imported before loading.
"""

from __future__ import annotations

import re
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from frozenprobe.encoders.base import Encoder
from frozenprobe.encoders.huggingface import contents
from frozenprobe.errors import EncoderError, FrozenprobeError, SettingsError
from frozenprobe.settings import EncoderSettings, parse

GROUP = "frozenprobe.encoders"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_\-]*):(.*)", re.DOTALL)


@runtime_checkable
class Adapter(Protocol):
    """One kind of checkpoint. Importing and sniffing must import neither torch nor transformers."""

    scheme: str

    def sniff(self, path: str) -> int:
        """How strongly this adapter claims the folder or hub id: 0 not at all, else 10, 20, 30 (see the module)."""
        ...

    def load(self, settings: EncoderSettings, path: str) -> Encoder:
        """Loads the encoder; `path` is `settings.ckpt` without its scheme.

        Raises:
            EncoderError: It cannot be loaded.
        """
        ...


@runtime_checkable
class TellsIncomplete(Protocol):
    """An adapter whose checkpoints are written while others read them."""

    def is_incomplete(self, path: str) -> bool:
        """Whether a folder is such a checkpoint, cut off or still being written. Imports neither torch nor transformers."""
        ...


def load_encoder(ckpt: str | Path | EncoderSettings, **options: Any) -> Encoder:
    """Loads the encoder that a checkpoint names.

    Args:
        ckpt: Hub id, folder or `scheme:path`; or the checkpoint and how it is run, as settings.
        **options: Fields of `EncoderSettings`, where `ckpt` is a name: `dtype="bf16"`, `max_length=256`.

    Returns:
        The encoder, ready to run.

    Raises:
        EncoderError: No adapter or more than one claims it, or loading fails; one line that says what to do.
        SettingsError: An option is unknown or has an impossible value.
    """
    settings = ckpt
    if not isinstance(settings, EncoderSettings):
        settings = parse(EncoderSettings, {"ckpt": str(ckpt), **options})
    elif options:
        raise SettingsError("options go with a checkpoint's name; settings hold them already")
    adapters, broken = find_adapters()
    adapter, path = claim(settings.ckpt, adapters, broken)
    try:
        encoder = adapter.load(settings, path)
    except FrozenprobeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise EncoderError(
            f"the adapter {adapter.scheme!r} failed on {path}: {type(error).__name__}: {reason}"
        ) from error
    if not isinstance(encoder, Encoder):
        raise EncoderError(f"the adapter {adapter.scheme!r} returned {type(encoder).__name__}, which is no Encoder")
    return encoder


def find_adapters() -> tuple[dict[str, Adapter], dict[str, str]]:
    """All registered adapters by scheme, and those that are broken: scheme and reason."""
    adapters: dict[str, Adapter] = {}
    broken: dict[str, str] = {}
    values: dict[str, str] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if values.get(entry.name) == entry.value:
            continue  # the same distribution seen twice on the path
        if entry.name in values:
            broken[entry.name] = f"registered twice, by {values[entry.name]} and {entry.value}"
            adapters.pop(entry.name, None)
            continue
        values[entry.name] = entry.value
        try:
            adapter = entry.load()
        except Exception as error:
            broken[entry.name] = f"{entry.value} cannot be imported: {type(error).__name__}: {error}"
            continue
        if not isinstance(adapter, Adapter):
            broken[entry.name] = f"{entry.value} is no adapter: it needs scheme, sniff and load"
        elif adapter.scheme != entry.name:
            broken[entry.name] = f"{entry.value} is registered as {entry.name!r} but its scheme is {adapter.scheme!r}"
        else:
            adapters[entry.name] = adapter
    return adapters, broken


def claim(ckpt: str, adapters: dict[str, Adapter], broken: dict[str, str]) -> tuple[Adapter, str]:
    """The adapter that takes a checkpoint, and the path without its scheme.

    Args:
        ckpt: What the user typed.
        adapters: The adapters by scheme.
        broken: Plug-ins that could not be loaded, by scheme, with the reason.

    Raises:
        EncoderError: No claim, two equal ones, or an unknown or broken scheme.
    """
    if not ckpt.strip():
        raise EncoderError("--ckpt is empty: give a hub id, a folder, or scheme:path")
    if (match := _SCHEME.fullmatch(ckpt)) and not Path(ckpt).exists():
        scheme, path = match.groups()
        if scheme in broken:
            raise EncoderError(f"the plug-in {scheme!r} is broken: {broken[scheme]}")
        if scheme not in adapters:
            raise EncoderError(f"--ckpt {ckpt}: unknown scheme {scheme!r}; known are {_schemes(adapters)}")
        if not path.strip():
            raise EncoderError(f"--ckpt {ckpt}: a folder or hub id must follow the colon")
        return adapters[scheme], _expand(path)
    path = _expand(ckpt)
    claims: dict[str, int] = {}
    broken = dict(broken)
    for scheme, adapter in adapters.items():
        try:
            claims[scheme] = int(adapter.sniff(path))
        except Exception as error:
            broken[scheme] = f"its sniff failed: {type(error).__name__}: {error}"
    for scheme, reason in broken.items():
        warnings.warn(f"the encoder plug-in {scheme!r} is left out: {reason}", stacklevel=3)
    best = max(claims.values(), default=0)
    if best <= 0:
        raise EncoderError(_nobody(path, adapters, broken))
    winners = [scheme for scheme, priority in claims.items() if priority == best]
    if len(winners) > 1:
        options = " or ".join(f"{scheme}:{ckpt}" for scheme in winners)
        raise EncoderError(f"--ckpt {ckpt} is claimed by {' and '.join(winners)} alike: say {options}")
    return adapters[winners[0]], path


def _nobody(path: str, adapters: dict[str, Adapter], broken: dict[str, str]) -> str:
    folder = Path(path)
    if folder.is_dir():
        what = f"the folder {path} is no checkpoint that {_schemes(adapters)} recognise ({contents(folder)})"
        what += "; expected config.json (transformers) or modules.json (sentence-transformers)"
    elif folder.exists():
        what = f"--ckpt {path} is a file: give the folder that holds it"
    else:
        what = f"--ckpt {path}: there is no such folder, and it is not a hub id (name or owner/name)"
    return what + "".join(f"; the plug-in {scheme!r} is broken: {reason}" for scheme, reason in broken.items())


def _expand(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _schemes(adapters: dict[str, Adapter]) -> str:
    return ", ".join(f"{scheme}:" for scheme in adapters) or "none at all"
