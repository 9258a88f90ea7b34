"""The checkpoint that a run is given: a name to be loaded, or an encoder that is there already; what identifies it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frozenprobe.encoders.base import Encoder
from frozenprobe.errors import SettingsError


def given_encoder(
    ckpt: str | Path | Encoder, values: Mapping[str, Any] | None
) -> tuple[Encoder | None, dict[str, Any]]:
    """Tells a loaded encoder from a name.

    Args:
        ckpt: Hub id, folder, `scheme:path`, or a loaded encoder.
        values: The section `encoder` of the settings.

    Returns:
        The encoder, or None where it is to be loaded; and the section with its `ckpt`.

    Raises:
        SettingsError: It is neither, or options of loading are given for an encoder that is loaded already.
    """
    if values is not None and not isinstance(values, Mapping):
        raise SettingsError(f"encoder: a dictionary of options is needed (got {values!r})")
    values = dict(values or {})
    if isinstance(ckpt, str | Path):
        return None, {**values, "ckpt": str(ckpt)}
    if not isinstance(ckpt, Encoder):
        raise SettingsError(
            f"{type(ckpt).__name__} is no encoder: give a folder, a hub id, or frozenprobe.ModuleEncoder(model, "
            "tokenizer, name=...)"
        )
    without_effect = sorted(set(values) - {"name"})
    if without_effect:
        raise SettingsError(f"encoder.{without_effect[0]} has no effect on an encoder that is loaded already")
    return ckpt, {**values, "ckpt": ckpt.info.name}


def run_facts(encoder: Encoder) -> dict[str, Any]:
    """How an encoder is run, as resolved: what must be equal beside its fingerprint for two scores to be of one run."""
    return {name: getattr(encoder.info, name) for name in ("dtype", "max_length", "attention")}
