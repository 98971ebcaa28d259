"""Which input sizes do the layers of a model see? Recorded while it is called."""

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from .._layer.geometry import Geometry
from ._calls import Call, Calls, modules_in_call
from ._modules import (
    KNOWN,
    as_kernel,
    axes_of,
    geometry_of,
    has_own_forward,
    names_of,
    whole,
)

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


@dataclass(slots=True, eq=False)
class _Running:
    """A module that is being called, and the convolutions by its own weight."""

    module: nn.Module
    own: list[Call] = field(default_factory=list)


class Recorder:
    """Records the convolutions of a model from every call with new input sizes.

    It hooks into all calls of modules, and leaves nothing on the model itself, until
    `close` or until it is forgotten.
    """

    def __init__(self, model: nn.Module, *, batch_norms: bool = False) -> None:
        self.batch_norms = batch_norms
        self.problems: dict[str, str] = {}
        self.names = names_of(model)
        self._uses: list[Use] = []
        self._keys: set[Any] = set()
        self._calls_seen: set[Any] = set()
        # Which use each output came from; weak, so that outputs can be freed.
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._running: list[_Running] = []
        self._thread: int | None = None
        self._mode = Calls(self._note_call)
        self._handles: list[Any] = []
        self.open()

    @property
    def uses(self) -> list[Use]:
        """What each layer was used for so far, in the order of the calls."""
        return list({use.key: use for use in self._uses}.values())

    def open(self) -> None:
        """Record from now on."""
        if self._handles:
            return
        here = weakref.ref(self)

        def enter(module: nn.Module, args: Any) -> None:
            recorder = here()
            if recorder is not None and not _is_traced():
                recorder._enter(module, args)

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

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module not in self.names:  # also copies, as DataParallel makes them
            return
        key = (module, *(x.shape for x in args if isinstance(x, torch.Tensor)))
        if self._running and self._thread == threading.get_ident():
            _, *around = modules_in_call()
            if self._running[0].module not in around:
                self._running.clear()  # Ctrl-C has ended that call, without a hook
                self._mode.leave()
        if not self._running:
            if key in self._calls_seen:
                return
            self._thread = threading.get_ident()
            self._mode.__enter__()
        if self._thread == threading.get_ident():
            self._calls_seen.add(key)
            self._running.append(_Running(module))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        ours = any(running.module is module for running in self._running)
        if self._thread != threading.get_ident() or not ours:
            return
        while (running := self._running.pop()).module is not module:
            pass  # its call has failed
        if not self._running:
            self._mode.leave()
        if isinstance(module, KNOWN) and output is not None:  # None: it has failed
            self._note_module(running, args, kwargs, output)
        elif self.batch_norms and isinstance(module, _BatchNorm):
            self._note_batch_norm(module, args)

    def _note_call(self, call: Call) -> None:
        """Note a convolution, by the parameter that is its weight."""
        inner, weight = self._running[-1], call.weight
        module = inner.module
        if any(isinstance(r.module, ParametrizationList) for r in self._running):
            return  # that computes a weight, as `bounded` does
        if isinstance(module, KNOWN) and _is_own_weight(module, weight):
            inner.own.append(call)
            return
        if call.geometry is None:
            if isinstance(module, nn.Linear):
                self.problems[self.names[module]] = COMPUTED
            return
        for owner in (*(r.module for r in reversed(self._running)), *self.names):
            for attribute, parameter in owner._parameters.items():
                if parameter is weight:
                    known = isinstance(owner, KNOWN) and attribute == "weight"
                    name = self.names[owner]
                    name = name if known else _joined(owner, name, attribute)
                    self._add(name, owner, call.geometry, call.output, attribute)
                    return
        buffers = any(weight is buffer for buffer in module._buffers.values())
        self.problems[self.names[module]] = BUFFER if buffers else COMPUTED

    def _note_module(
        self, running: _Running, args: Any, kwargs: Any, output: Any
    ) -> None:
        module, name = running.module, self.names[running.module]
        if not running.own:
            self.problems.setdefault(name, NO_CALL)
            return
        if has_own_forward(module):
            for call in running.own:
                geometry = call.geometry or (lambda: geometry_of(module, None))
                self._add(name, module, geometry, call.output)
            return
        x, axes = args[0] if args else next(iter(kwargs.values())), axes_of(module)
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
        # With BatchNorms every call is a use of its own: what follows it may differ.
        if self.batch_norms or use.key not in self._keys:
            self._keys.add(use.key)
            self._uses.append(use)
        if self.batch_norms and (not isinstance(module, nn.Linear) or output.ndim == 2):
            self._makers[id(output)] = (weakref.ref(output), len(self._uses) - 1)

    def _note_batch_norm(self, module: nn.Module, args: Any) -> None:
        output, number = self._makers.get(id(args[0]), (lambda: None, 0))
        if output() is args[0] and cast(Any, module).running_var is not None:
            norm = (self.names[module], module)
            self._uses[number] = replace(self._uses[number], batch_norm=norm)


def _is_traced() -> bool:
    """Whether PyTorch compiles or traces the call, which then is none."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def _is_own_weight(module: nn.Module, weight: torch.Tensor) -> bool:
    """Whether a weight is the known module's own, as it is or by a parametrization."""
    if is_parametrized(module, "weight"):
        return not has_own_forward(module)
    own = module._parameters.get("weight"), module.__dict__.get("weight")
    return any(weight is each for each in own)


def _joined(module: nn.Module, name: str, attribute: str) -> str:
    return attribute if name == type(module).__name__ else f"{name}.{attribute}"


def run(model: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Call the model once, and leave it as it was."""
    with undisturbed(model):
        model(*args, **keywords)


def _can_be_restored(buffer: torch.Tensor) -> bool:
    lazy = nn.parameter.is_lazy(buffer)
    return not lazy and buffer.layout == torch.strided and not buffer.is_meta


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; restores modes, buffers and random states."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and _can_be_restored(buffer)
    ]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode
                if isinstance(module, FSDPModule):
                    module.reshard()  # the outermost is not resharded after a call
            for module, name, buffer, numbers in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, numbers):
                    buffer.resize_(numbers.shape).copy_(numbers)
