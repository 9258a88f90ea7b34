"""Command-line options made from settings: every field is an option, so that a setting is written down once.

`probes.max_train` becomes `--max-train`, `probes.ridge.lambda_min` becomes `--ridge-lambda-min`. What the user did not type is left to the settings' own defaults, or to `--config`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frozenprobe.errors import SettingsError
from frozenprobe.settings import Checked, parse

TOP = "settings"  # the group in --help of what belongs to no section
PREFIXED = ("ridge", "knn", "finetune", "slurm")  # sections whose fields would be unclear without the section's name


def add_options(parser: argparse.ArgumentParser, model: type[BaseModel], without: Sequence[str] = ()) -> None:
    """Adds `--config` and an option for every field of a settings class but those named, one group per section."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings in a file; options override it")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, (option, field) in _options(model).items():
        if name in without:
            continue
        section = name.rpartition(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section.replace(".", ", ") or TOP)
        details: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(field)}
        if field.annotation is bool:
            details["action"] = argparse.BooleanOptionalAction
        else:
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            details["metavar"] = "{" + ",".join(choices) + "}" if choices else option[2:].upper().replace("-", "_")
        groups[section].add_argument(option, **details)


def read_options(
    arguments: argparse.Namespace,
    model: type[Checked],
    base: dict[str, Any] | None = None,
    fixed: Mapping[str, object] | None = None,
) -> Checked:
    """Settings from `--config` and the options that were typed.

    Args:
        arguments: What `add_options` made argparse find.
        model: The settings class.
        base: Values below `--config`.
        fixed: What the command itself fixes, by dotted name.

    Raises:
        SettingsError: An unknown key, an impossible value, or a file that cannot be read.
    """
    values: dict[str, Any] = dict(base or {})
    if arguments.config is not None:
        try:
            values |= tomllib.loads(arguments.config.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise SettingsError(f"--config {arguments.config}: {error}") from None
        if TOP in values and TOP not in model.model_fields:
            raise SettingsError(
                f"--config {arguments.config}: what --help lists under {TOP} stands at the top of the file, in no section"
            )
    typed = {name: vars(arguments)[name] for name in _options(model) if name in arguments} | dict(fixed or {})
    for name in _options(model):  # a section that nobody named is there, so that what it lacks is named
        if "." in name:
            values.setdefault(name.split(".")[0], {})
    for name, value in typed.items():
        *sections, field = name.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise SettingsError(f"--config {arguments.config}: {section} must be a table")
        place[field] = value
    try:
        return parse(model, values)
    except SettingsError as error:
        message = str(error)
        for name, (option, _) in _options(model).items():
            if message.startswith((f"{name}: ", f"{name} ")):
                message = option + message.removeprefix(name)
        raise SettingsError(message) from None


def _options(model: type[BaseModel], place: tuple[str, ...] = ()) -> dict[str, tuple[str, FieldInfo]]:
    """Every field by its dotted name, with its option: `probes.ridge.lambda_min` -> `--ridge-lambda-min`."""
    found: dict[str, tuple[str, FieldInfo]] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= _options(field.annotation, (*place, name))
        else:
            prefix = f"{place[-1]}-" if place and place[-1] in PREFIXED else ""
            found[".".join((*place, name))] = (f"--{prefix}{name}".replace("_", "-"), field)
    return found


def _help(field: FieldInfo) -> str:
    parts = [field.description or ""]
    default = field.default
    if field.is_required() or field.default_factory is not None or default is None or default == ():
        pass
    elif isinstance(default, tuple):
        parts.append(f"(default {','.join(map(str, default))})")
    else:
        parts.append(f"(default {default})")
    return " ".join(filter(None, parts)).replace("%", "%%")
