"""Command-line options made from settings: every field is an option, so that a setting is written down once.

`probes.ridge.lambda_min` becomes `--ridge-lambda-min`: the innermost section that is not a section of its own gives
the prefix. What the user did not type is left to the settings' own defaults, or to `--config`.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frozenprobe.errors import SettingsError
from frozenprobe.settings import Checked, parse

PREFIXED = ("ridge", "knn")  # sections whose fields would be unclear without the section's name


def add_options(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Adds `--config` and an option for every field of a settings class, one group per section."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings in a file; options override it")
    _add_section(parser, parser.add_argument_group("what is measured"), model, ())


def read_options(arguments: argparse.Namespace, model: type[Checked]) -> Checked:
    """Settings from `--config` and the options that were typed.

    Raises:
        SettingsError: An unknown key, an impossible value, or a file that cannot be read.
    """
    values: dict[str, Any] = {}
    if arguments.config is not None:
        try:
            values = tomllib.loads(arguments.config.read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"--config {arguments.config}: {error}") from None
    for name, value in vars(arguments).items():
        if "." in name or name in model.model_fields:
            *sections, field = name.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
                if not isinstance(place, dict):
                    raise SettingsError(f"--config {arguments.config}: {section} must be a table")
            place[field] = value
    return parse(model, values)


def _add_section(
    parser: argparse.ArgumentParser, group: argparse._ArgumentGroup, model: type[BaseModel], place: tuple[str, ...]
) -> None:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = parser.add_argument_group(f"{name}: {(field.annotation.__doc__ or '').splitlines()[0]}")
            _add_section(parser, inner, field.annotation, (*place, name))
            continue
        prefix = f"{place[-1]}-" if place and place[-1] in PREFIXED else ""
        destination = ".".join((*place, name))
        if field.annotation is bool:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(
                f"--{prefix}{name}".replace("_", "-"),
                dest=destination,
                action=action,
                default=argparse.SUPPRESS,
                help=_help(field),
            )
        else:
            group.add_argument(
                f"--{prefix}{name}".replace("_", "-"),
                dest=destination,
                default=argparse.SUPPRESS,
                metavar=name.upper() if not _choices(field) else "{" + ",".join(_choices(field)) + "}",
                required=False,
                help=_help(field),
            )


def _choices(field: FieldInfo) -> tuple[str, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _help(field: FieldInfo) -> str:
    parts = [field.description or ""]
    default = field.default
    if field.is_required() or default is None or default == ():
        pass
    elif isinstance(default, tuple):
        parts.append(f"(default {','.join(map(str, default))})")
    else:
        parts.append(f"(default {default})")
    return " ".join(filter(None, parts)).replace("%", "%%")
