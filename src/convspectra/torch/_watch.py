"""At which input sizes is a model used? Watched for as long as it is bounded."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ._layers import Layers, recorded, uses_on_any_size
from ._modules import is_compiled, names_of, unwrapped
from ._record import Recorder, Use, Uses
from ._replicas import Replicas
from ._targets import arguments, uses_among
from ._undisturbed import run

SIZES = ("seen", "every")
NOT_RUN = (
    "The model must have run, uncompiled, before its layers can be bounded, and it has "
    "not. Call it, or pass an `example` of its input."
)
NO_EXAMPLE = (
    "`fold_batch_norm` needs an `example` of the model's input also if `sizes` is "
    "'every': a call shows which BatchNorm follows a layer. Pass one."
)
NOT_FOLDED = (
    "With `fold_batch_norm`, `example` must have layers with a BatchNorm, but these "
    "have none. Pass an example of the model's input, or call `layers` with "
    "`fold_batch_norm=True`."
)


class Watch:
    """The layers of a model at all input sizes that it was called with so far."""

    def __init__(
        self, model: nn.Module, example: Any, sizes: str, *, fold_batch_norm: bool
    ) -> None:
        if sizes not in SIZES:
            raise ValueError(
                f"`sizes` must be one of {', '.join(SIZES)}, got {sizes!r}."
            )
        self.model, self.sizes = unwrapped(model), sizes
        self._given = model  # which may be compiled, where what it wraps is not
        self.recorder: Recorder | None = None
        self.uses, self._warned = Uses([], {}), False
        if isinstance(example, Layers):
            self.uses = self._sized(uses_among(example, self.model))
            folded = any(use.batch_norm is not None for use in self.uses.found)
            if fold_batch_norm and not folded:
                raise ValueError(NOT_FOLDED)
            fold_batch_norm = folded
        elif example is None and sizes == "every":
            if fold_batch_norm:
                raise ValueError(NO_EXAMPLE)
            self.uses = uses_on_any_size(self.model)
            return
        elif example is None and is_compiled(model):
            raise ValueError(
                "The layers of a compiled model cannot be recorded while it runs: pass "
                "an `example` of its input, which determines their input sizes, or "
                "bound them at every size: `sizes='every'`."
            )
        self.recorder = Recorder(self.model, batch_norms=fold_batch_norm)
        if example is not None and not isinstance(example, Layers):
            try:
                run(self.model, *arguments(example))
            except BaseException:
                self.recorder.close()
                raise
            self._merge(recorded(self.model, self.recorder).found)
        if is_compiled(model):
            self.recorder.close()

    def open(self) -> None:
        """Watch again."""
        if self.recorder is not None and not is_compiled(self._given):
            self.recorder.open()

    def close(self) -> None:
        """Watch no more."""
        if self.recorder is not None:
            self.recorder.close()

    def update(self, replicas: Replicas) -> None:
        """Take in what was seen since the last time, by any process."""
        self._refresh()
        seen: list[Use] = [] if self.recorder is None else self.recorder.uses
        if replicas.size > 1:
            keys = replicas.gathered({replicas.rank: [use.key for use in seen]})
            seen = self._of_keys([key for rank in sorted(keys) for key in keys[rank]])
        first = not self.uses.found
        new = self._merge(seen)
        if not self.uses.found:
            raise RuntimeError(NOT_RUN)
        if new and not first and not self._warned:
            self._warned = True
            warnings.warn(
                f"Layer {new[0].name!r} is used with an input size that it was not "
                f"bounded at before, {new[0].geometry.grid}; from now on it is. "
                "`sizes='every'` bounds layers at all sizes from the beginning.",
                stacklevel=4,
            )

    def _refresh(self) -> None:
        """Follow the model, if modules of it have been replaced or added."""
        if self.recorder is None:
            self.uses = uses_on_any_size(self.model)
            return
        self.recorder.refresh()
        kept = [use for use in self.uses.found if use.is_in(self.recorder.names)]
        if len(kept) < len(self.uses.found):
            self.uses = Uses(kept, recorded(self.model, self.recorder).skipped)

    def _merge(self, seen: Sequence[Use]) -> list[Use]:
        """Add uses that are not known yet, and return these."""
        known = {use.key for use in self.uses.found}
        sized = self._sized(Uses(list(seen), {})).found
        new = [use for use in sized if use.key not in known]
        skipped = self.uses.skipped
        if new and self.recorder is not None:
            skipped = recorded(self.model, self.recorder).skipped
        self.uses = Uses([*self.uses.found, *new], skipped)
        return new

    def _sized(self, uses: Uses) -> Uses:
        if self.sizes == "seen":
            return uses
        each = [
            replace(use, geometry=replace(use.geometry, grid=None))
            if not isinstance(use.module, nn.Linear)
            else use
            for use in uses.found
        ]
        return Uses(list({use.key: use for use in each}.values()), uses.skipped)

    def _of_keys(self, keys: Sequence[Any]) -> list[Use]:
        """The uses that these keys tell of, with the modules of this process."""
        modules = {name: module for module, name in names_of(self.model).items()}
        found = []
        for name, attribute, geometry, after in keys:
            owner = name if attribute == "weight" and name in modules else None
            owner = name.removesuffix(f".{attribute}") if owner is None else owner
            module = modules.get(owner, self.model)
            norm = None if after is None else (after, modules[after])
            found.append(Use(name, module, geometry, norm, attribute))
        return found
