"""Which input sizes do the layers of a model see? Recorded while it is called."""

import threading
import weakref
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from .._layer.geometry import Geometry
from ._calls import Call, Calls, key_of_call, keywords_of_call, modules_in_call
from ._modules import (
    KNOWN,
    as_kernel,
    axes_of,
    geometry_of,
    has_own_forward,
    names_of,
    whole,
)
from ._outputs import Outputs, Readers

COMPUTED = (
    "its forward computes the weight that it convolves with: bound that by a "
    "parametrization, or compute it in one"
)
BUFFER = "its kernel is a buffer, which is not trained"
NO_CALL = "no convolution by its weight was seen in its forward"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One weight at one geometry; it has several if its input sizes differ."""

    name: str
    module: nn.Module
    geometry: Geometry
    batch_norm: tuple[str, Any] | None = None  # what its output goes into
    attribute: str = "weight"  # of the module

    @property
    def weight(self) -> torch.Tensor:
        """The whole kernel in effect; that of a Linear layer has one tap."""
        weight = cast(torch.Tensor, getattr(self.module, self.attribute))
        return as_kernel(whole(weight))

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other uses, also in another process."""
        after = None if self.batch_norm is None else self.batch_norm[0]
        return self.name, self.attribute, self.geometry, after

    def is_in(self, modules: Container[nn.Module]) -> bool:
        """Whether what it is a use of is among these modules."""
        norm = None if self.batch_norm is None else self.batch_norm[1]
        return self.module in modules and (norm is None or norm in modules)


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """What a model uses its layers for.

    Attributes
    ----------
    found : list of Use
        In the order of the call.
    skipped : dict of str to str
        The names of other modules with weights, and why they are left out.
    """

    found: list[Use]
    skipped: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A use, and what reads its output, which tells the BatchNorms after it."""

    use: Use
    readers: Readers = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Running:
    """A module that is being called, and whether it convolves by its own weight."""

    module: nn.Module
    key: int | None  # of its call
    convolves: bool = False


class Recorder:
    """Records the convolutions of a model from every call with new input sizes.

    It hooks into all calls of modules, and leaves nothing on the model itself, until
    `close` or until it is forgotten.
    """

    def __init__(self, model: nn.Module, *, batch_norms: bool = False) -> None:
        self.batch_norms = batch_norms
        self.problems: dict[str, str] = {}
        self.names = names_of(model)
        self._model = model
        self._seen: list[_Seen] = []
        self._keys: set[Any] = set()
        self._calls_seen: set[int] = set()
        self._outputs = Outputs()
        self._running: list[_Running] = []
        self._thread: int | None = None
        self._mode = Calls(self._note_call, self._begin if batch_norms else None)
        self._handles: list[Any] = []
        self.open()

    @property
    def uses(self) -> list[Use]:
        """What each layer was used for so far, in the order of the calls."""
        each = [
            replace(seen.use, batch_norm=norm)
            for seen in self._seen
            for norm in seen.readers or (None,)
        ]
        return list({use.key: use for use in each}.values())

    def refresh(self) -> None:
        """Forget modules that the model no longer has, and look at new ones.

        What these do, the next call of the model tells.
        """
        names = names_of(self._model)
        if names != self.names:
            self.names = names
            self._seen = [seen for seen in self._seen if seen.use.is_in(names)]
            self._keys = {seen.use.key for seen in self._seen}
            self._calls_seen.clear()

    def open(self) -> None:
        """Record from now on."""
        if self._handles:
            return
        here = weakref.ref(self)

        def enter(module: nn.Module, args: Any) -> None:
            recorder = here()
            if recorder is not None and not _is_traced():
                recorder._enter(module, args, keywords_of_call())

        def leave(module: nn.Module, args: Any, *rest: Any) -> None:
            kwargs, output = rest if len(rest) == 2 else ({}, None)  # it has failed
            recorder = here()
            if recorder is not None and recorder._running and not _is_traced():
                recorder._leave(module, args, kwargs, output)

        self._handles = [
            module_hooks.register_module_forward_pre_hook(enter),
            module_hooks.register_module_forward_hook(
                leave, with_kwargs=True, always_call=True
            ),
        ]
        weakref.finalize(self, _remove, self._handles)

    def close(self) -> None:
        self._running.clear()
        self._mode.leave()
        _remove(self._handles)

    def _enter(self, module: nn.Module, args: Any, keywords: Mapping[str, Any]) -> None:
        if module is self._model and not self._running:
            self.refresh()  # modules may have been replaced or added
        if module not in self.names:  # also copies, as DataParallel makes them
            return
        try:
            key = key_of_call(module, args, keywords)
        except RuntimeError:  # from a nested tensor, which goes into no convolution
            return
        if self._running and self._thread == threading.get_ident():
            _, *around = modules_in_call()
            if self._running[0].module not in around:
                self._running.clear()  # Ctrl-C has ended that call, without a hook
                self._mode.leave()
        if not self._running:
            if key in self._calls_seen:
                return
            if self.batch_norms and not self._outputs:  # all readers are known
                self._seen = [_Seen(u, {u.batch_norm: None}) for u in self.uses]
            self._thread = threading.get_ident()
            self._mode.__enter__()
        if self._thread == threading.get_ident():
            self._running.append(_Running(module, key))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        ours = any(running.module is module for running in self._running)
        if self._thread != threading.get_ident() or not ours:
            return
        while (running := self._running.pop()).module is not module:
            pass  # its call has failed
        if not self._running:
            self._mode.leave()
        if output is None:  # the call has failed
            return
        if running.key is not None:
            self._calls_seen.add(running.key)
        if isinstance(module, KNOWN):
            self._note_module(running, _first(args, kwargs), output)
        elif self.batch_norms and _is_foldable(module):
            self._outputs.note(_first(args, kwargs), (self.names[module], module))
        if module is self._model and not self._running:
            self._outputs.note(output, None)  # whoever calls the model reads it

    def _begin(self, values: Any) -> Callable[[Any], None] | None:
        """Begin a call of a function; a BatchNorm is noted as a whole."""
        is_norm = _is_foldable(self._running[-1].module)
        return None if is_norm else self._outputs.call(values)

    def _note_call(self, call: Call) -> None:
        """Note a convolution, by the parameter that is its weight."""
        inner, weight = self._running[-1], call.weight
        module = inner.module
        if any(isinstance(r.module, ParametrizationList) for r in self._running):
            return  # that computes a weight, as `bounded` does
        if isinstance(module, KNOWN) and _is_own_weight(module, weight):
            inner.convolves = True
            if has_own_forward(module):
                geometry = call.geometry or (lambda: geometry_of(module, None))
                self._add(self.names[module], module, geometry, call.output)
            return
        if call.geometry is None:
            if isinstance(module, nn.Linear):
                self.problems[self.names[module]] = COMPUTED
            return
        for owner in (*(r.module for r in reversed(self._running)), *self.names):
            for attribute, parameter in owner._parameters.items():
                if parameter is weight:
                    name = self._name(owner, attribute)
                    self._add(name, owner, call.geometry, call.output, attribute)
                    return
        buffers = any(weight is buffer for buffer in module._buffers.values())
        self.problems[self.names[module]] = BUFFER if buffers else COMPUTED

    def _name(self, owner: nn.Module, attribute: str) -> str:
        """The name of a parameter that is used as a kernel."""
        if isinstance(owner, KNOWN) and attribute == "weight":
            return self.names[owner]
        return attribute if owner is self._model else f"{self.names[owner]}.{attribute}"

    def _note_module(self, running: _Running, x: Any, output: Any) -> None:
        module, name = running.module, self.names[running.module]
        if not running.convolves:
            self.problems.setdefault(name, NO_CALL)
            return
        if has_own_forward(module):
            return  # its calls are noted, one by one
        axes = axes_of(module)
        sizes = tuple(tuple(map(int, each.shape[-axes:])) for each in (x, output))
        self._add(name, module, lambda: geometry_of(module, *sizes), output)

    def _add(
        self,
        name: str,
        module: nn.Module,
        geometry: Any,
        output: torch.Tensor,
        attribute: str = "weight",
    ) -> None:
        try:
            use = Use(name, module, geometry(), attribute=attribute)
        except ValueError as error:  # no Geometry describes this call
            self.problems[name] = str(error)
            return
        seen = _Seen(use)
        # With BatchNorms every call is a use of its own: what follows it may differ.
        if self.batch_norms or use.key not in self._keys:
            self._keys.add(use.key)
            self._seen.append(seen)
        if self.batch_norms and (not isinstance(module, nn.Linear) or output.ndim == 2):
            self._outputs.add(output, seen.readers)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The input of a module, which may be passed by its name."""
    return args[0] if args else next(iter(kwargs.values()), None)


def _is_foldable(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm that scales by constants once it is trained."""
    return isinstance(module, _BatchNorm) and module.running_var is not None


def _is_traced() -> bool:
    """Whether PyTorch compiles or traces the call, which then is none."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _remove(handles: list[Any]) -> None:
    while handles:
        handle = handles.pop()
        handle.remove()
        # PyTorch leaves this behind, of which compiled models warn as of a hook.
        module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)


def _is_own_weight(module: nn.Module, weight: torch.Tensor) -> bool:
    """Whether a weight is the known module's own, as it is or by a parametrization."""
    if is_parametrized(module, "weight"):
        return not has_own_forward(module)
    own = module._parameters.get("weight"), module.__dict__.get("weight")
    return any(weight is each for each in own)
