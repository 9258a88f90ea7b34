"""Prompts that a caller gives to an encoder without prompts of its own: a prefix for queries, one for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frozenprobe.encoders.base import Encoder, HasPrompts, Role
from frozenprobe.errors import SettingsError


def require_no_prompts(encoder: Encoder, prompts: Mapping[Role, str]) -> None:
    """Refuses prompts for an encoder that has its own.

    Raises:
        SettingsError: It has.
    """
    if prompts and isinstance(encoder, HasPrompts):
        raise SettingsError(
            f"{encoder.info.name} declares prompts of its own; leave out --query-prompt and --document-prompt"
        )


def prefixed(texts: Sequence[str], role: Role | None, prompts: Mapping[Role, str]) -> list[str]:
    """The texts with the prefix of their role; those without a role have none."""
    prefix = prompts.get(role, "") if role is not None else ""
    return [prefix + text for text in texts] if prefix else list(texts)
