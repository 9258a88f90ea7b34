"""Makes `AutoConfig` and `AutoModel` know CrossBERT once both this package and transformers are imported.

Importing transformers takes seconds, and `crossbert --help` has no use for it: so it is not imported here, but waited
for, in whatever order its modules come.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Whoever ends up with an auto class or a model class has imported one of these; the last may be what imports the others.
_WATCHED = (
    "transformers.models.auto.configuration_auto",
    "transformers.models.auto.modeling_auto",
    "transformers.modeling_utils",
    "crossbert.modeling_crossbert",
)


def register_when_possible() -> None:
    """Registers now where transformers is in use already, otherwise as soon as it is."""
    watcher = _Watcher()
    sys.meta_path.insert(0, watcher)
    if any(name in sys.modules for name in _WATCHED):
        watcher.try_to_register()


def register() -> None:
    """Tells the auto classes of transformers which classes a checkpoint of type `crossbert` needs."""
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

    from crossbert.modeling_crossbert import CrossBertConfig, CrossBertForMaskedLM, CrossBertModel

    AutoConfig.register(CrossBertConfig.model_type, CrossBertConfig, exist_ok=True)
    AutoModel.register(CrossBertConfig, CrossBertModel, exist_ok=True)
    AutoModelForMaskedLM.register(CrossBertConfig, CrossBertForMaskedLM, exist_ok=True)


class _Watcher(MetaPathFinder):
    """Lets watched modules be imported as ever, and tries to register after each, until that works."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module, made by the other finders, with the attempt to register added."""
        if fullname not in _WATCHED or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                self.try_to_register()

            spec.loader.exec_module = execute_and_register
        return spec

    def try_to_register(self) -> None:
        """Registers, unless transformers is in the middle of its own imports: then the next module tries again."""
        if self._busy or self not in sys.meta_path:
            return
        self._busy = True
        try:
            register()
        except ImportError:
            return
        finally:
            self._busy = False
        sys.meta_path.remove(self)
