"""Which sizes the layers of a model see, learned from a pass through it."""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm

from .._geometry import Geometry
from ._modules import KNOWN, as_kernel, axes_of, geometry_of, whole


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One module at one geometry."""

    name: str
    module: nn.Module
    geometry: Geometry
    batch_norm: tuple[str, Any] | None = None  # what its output goes into

    @property
    def weight(self) -> torch.Tensor:
        """The kernel in effect, whole; a Linear's has one tap."""
        return as_kernel(whole(cast(torch.Tensor, self.module.weight)))


class Recorder:
    """Hooks on every known layer that note what each is used for, until `close`."""

    def __init__(self, model: nn.Module, *, batch_norms: bool = False) -> None:
        self.uses: dict[tuple[Any, ...], Use] = {}
        self.problems: dict[str, str] = {}
        self.names = {module: name for name, module in model.named_modules()}
        # The uses that outputs of the pass came from; the outputs themselves may go.
        self.makers: dict[int, tuple[weakref.ref[torch.Tensor], Use]] = {}
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

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()

    def _note(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        name, axes = self.names[module], axes_of(module)
        x = args[0] if args else kwargs["input"]
        sizes = (tuple(map(int, each.shape[-axes:])) for each in (x, output))
        try:
            use = Use(name, module, geometry_of(module, *sizes))
        except ValueError as wrong:  # what no geometry can say
            self.problems[name] = str(wrong)
            return
        use = self.uses.setdefault((name, use.geometry), use)
        self.makers[id(output)] = (weakref.ref(output), use)

    def _note_batch_norm(
        self, module: nn.Module, args: tuple[Any, ...], _output: Any
    ) -> None:
        output, use = self.makers.get(id(args[0]), (lambda: None, None))
        if use is None or output() is not args[0]:
            return
        folded = Use(use.name, use.module, use.geometry, (self.names[module], module))
        self.uses.pop((use.name, use.geometry), None)
        self.uses[use.name, use.geometry, folded.batch_norm] = folded


def run(model: nn.Module, example: Any) -> None:
    """Call the model on an example: a dict of keywords, a tuple of inputs, or one."""
    with undisturbed(model):
        if isinstance(example, dict):
            model(**example)
        elif isinstance(example, (tuple, list)):
            model(*example)
        else:
            model(example)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients; afterwards everything is as it was."""
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
                    module.reshard()  # the outermost stays whole after a pass
            for module, name, buffer, numbers in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, numbers):
                    buffer.copy_(numbers)
