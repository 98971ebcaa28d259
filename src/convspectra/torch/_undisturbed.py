"""How is a model called without a trace?"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


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
    modes = [  # a frozen script has none
        (module, module.training)
        for module in model.modules()
        if hasattr(module, "training")
    ]
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
