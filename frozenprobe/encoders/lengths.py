"""How long an input may be: what the tokenizer, the config and the position table say, and what the caller asks."""

from __future__ import annotations

from typing import Any

from torch import nn

from frozenprobe.encoders.tokenization import SANE_LENGTH
from frozenprobe.errors import EncoderError

FALLBACK = 512
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe", "position_embedding", "pos_embedding")
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "xlnet")  # no table: max_position_embeddings, if any, means something else


def resolve_max_length(
    model: nn.Module, config: Any, tokenizer: Any, *, asked: int | None, declared: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """The longest input in tokens, and notes for the record.

    Args:
        model: The encoder.
        config: Its config, or None.
        tokenizer: Its tokenizer.
        asked: The caller's `--max-length`.
        declared: A sentence-transformers folder's own limit.

    Returns:
        The limit and the notes.

    Raises:
        EncoderError: `asked` is longer than the position table.
    """
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 2):
        raise EncoderError(f"max length: a whole number of at least 2 tokens is needed (got {asked!r})")
    table = position_table(model)
    trained = None if getattr(config, "model_type", None) in _RELATIVE else _sane(config, "max_position_embeddings")
    trained = min((value for value in (table, trained) if value is not None), default=None)
    if asked is not None:
        if table is not None and trained is not None and asked > trained:
            raise EncoderError(f"--max-length {asked} is more than the {trained} positions of this encoder's table")
        if trained is not None and asked > trained:
            return asked, (f"max length {asked} is more than the {trained} positions the config declares",)
        return asked, ()
    if declared is not None:
        return min(declared, trained or declared), ()
    limits = [value for value in (_sane(tokenizer, "model_max_length"), trained) if value is not None]
    if limits:
        return min(limits), ()
    return FALLBACK, (f"neither tokenizer nor config declares a longest input: {FALLBACK} tokens are used",)


def position_table(model: nn.Module) -> int | None:
    """Usable rows of a learned table of absolute positions, or None where there is none.

    RoBERTa and its kin number positions from `padding_idx + 1`, so those rows are not usable.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in _POSITION_TABLES:
            unusable = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unusable
    return None


def _sane(owner: Any, attribute: str) -> int | None:
    value = getattr(owner, attribute, None)
    return int(value) if isinstance(value, (int, float)) and 0 < value < SANE_LENGTH else None
