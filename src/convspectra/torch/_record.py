"""Which input sizes do the layers of a model see? Recorded while it is called."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm

from .._layer.geometry import Geometry
from ._modules import KNOWN, as_kernel, axes_of, geometry_of, whole


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One module at one geometry; a module has several if its input sizes differ."""

    name: str
    module: nn.Module
    geometry: Geometry
    batch_norm: tuple[str, Any] | None = None  # what its output goes into

    @property
    def weight(self) -> torch.Tensor:
        """The whole kernel in effect; that of a Linear layer has one tap."""
        return as_kernel(whole(cast(torch.Tensor, self.module.weight)))


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


class Recorder:
    """Hooks on every known layer that record its input sizes, until `close`."""

    def __init__(self, model: nn.Module, *, batch_norms: bool = False) -> None:
        self.batch_norms, self.is_closed = batch_norms, False
        self.problems: dict[str, str] = {}
        self.names = {module: name for name, module in model.named_modules()}
        self._uses: dict[Any, Use] = {}
        # Which use each output came from; weak, so that outputs can be freed.
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        self.handles = [
            module.register_forward_hook(self._note, with_kwargs=True)
            for module in self.names
            if isinstance(module, KNOWN)
        ]
        if batch_norms:
            self.handles += [
                module.register_forward_hook(self._note_batch_norm)
                for module in self.names
                if isinstance(module, _BatchNorm)
            ]

    @property
    def uses(self) -> list[Use]:
        """What each layer was used for so far, in the order of the calls."""
        distinct = {
            (u.module, u.geometry, u.batch_norm): u for u in self._uses.values()
        }
        return list(distinct.values())

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.is_closed = True

    def _note(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        name, axes = self.names.get(module), axes_of(module)
        if name is None:  # a copy of the module, as DataParallel makes them
            return
        x = args[0] if args else next(iter(kwargs.values()))
        if not (isinstance(x, torch.Tensor) and isinstance(output, torch.Tensor)):
            self.problems[name] = "it does not go from a tensor to a tensor"
            return
        sizes = tuple(tuple(map(int, each.shape[-axes:])) for each in (x, output))
        # With BatchNorms every call is a use of its own: what follows it may differ.
        key = (module, sizes, len(self._uses) if self.batch_norms else 0)
        if key in self._uses:
            return
        try:
            self._uses[key] = Use(name, module, geometry_of(module, *sizes))
        except ValueError as error:  # no Geometry describes this call
            self.problems[name] = str(error)
            return
        if self.batch_norms and (not isinstance(module, nn.Linear) or output.ndim == 2):
            self._makers[id(output)] = (weakref.ref(output), key)

    def _note_batch_norm(
        self, module: nn.Module, args: tuple[Any, ...], _output: Any
    ) -> None:
        output, key = self._makers.get(id(args[0]), (lambda: None, None))
        if key is not None and output() is args[0] and module.running_var is not None:
            norm = (self.names[module], module)
            self._uses[key] = replace(self._uses[key], batch_norm=norm)


def run(model: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Call the model once, and leave it as it was."""
    with undisturbed(model):
        model(*args, **keywords)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; restores modes, buffers and random states."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not nn.parameter.is_lazy(buffer)
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
                    buffer.copy_(numbers)
