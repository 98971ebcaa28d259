"""The layers of a model, each with its actual geometry."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .._layer.layer import Layer, scale_outputs
from .._text import cell
from .._training import FoundLayers
from ._modules import (
    KNOWN,
    batch_norm_gain,
    check_has_numbers,
    geometry_of,
    has_own_forward,
    names_of,
    not_known,
    unwrapped,
)
from ._record import Recorder, Use, Uses
from ._undisturbed import run, undisturbed
from ._warm_norm import WarmNorm

NEVER = (
    "its own forward did not run (an example is run in evaluation mode); another "
    "module may have used its weight, as MultiheadAttention does"
)
OWN_FORWARD = (
    "its class has a forward of its own: give an example of the model's input, which "
    "shows what it does with its weight"
)
LAZY = "it is lazy and has no weight yet: give an example of the model's input"


@dataclass(frozen=True, slots=True, eq=False)
class Layers(FoundLayers[Use]):
    """The layers of a model, as a sequence; see `layers`.

    Attributes
    ----------
    found : tuple of Layer
    skipped : dict of str to str
        The names of other modules with weights, and why they are left out.
    """

    # What `penalty` keeps from step to step, for each use.
    warm: dict[Any, WarmNorm] = field(repr=False, default_factory=dict)


def layers(
    model: nn.Module, *example: Any, fold_batch_norm: bool = False, **keywords: Any
) -> Layers:
    """Every convolution and Linear layer of a model, with its actual input size.

    The model is called once on the example, in evaluation mode and without gradients.
    Its mode, buffers and hooks and the state of the random number generators are left
    unchanged. Lazy modules get their weights from this call, as from any first call.

    Parameters
    ----------
    model : torch.nn.Module
        It may be compiled, wrapped in DistributedDataParallel, or sharded by
        `fully_shard`; in the last case all processes must call this function.
    *example, **keywords
        The arguments that the model is called with. Without any, the model is not
        called, and all layers have the grid None, which means every input size.
    fold_batch_norm : bool
        Whether to fold a BatchNorm, with its running statistics, into the layer before
        it, as in deployment. The layer is then named "layer+norm". It appears once for
        each BatchNorm that reads its output, and as "layer" if anything else does. Only
        an example shows that.

    Returns
    -------
    Layers
        In the order of execution. Weights are the effective ones (parametrizations
        applied, in evaluation mode) and share memory with the model where possible. A
        module that is used with several input sizes appears once for each, as
        "name@32x32"; a Linear layer is a kernel with one tap.
    """
    model = unwrapped(model)
    check_has_numbers(model)
    if example or keywords:
        uses = uses_of(model, example, keywords, fold_batch_norm)
    elif fold_batch_norm:
        raise ValueError(
            "`fold_batch_norm` needs an example of the model's input, which shows what "
            "each BatchNorm follows, and there is none: `layers(model, x, "
            "fold_batch_norm=True)`."
        )
    else:
        uses = uses_on_any_size(model)
    several = Counter(n for n, _ in {(use.name, use.geometry) for use in uses.found})
    with undisturbed(model):  # a parametrization computes its weight
        found = tuple(_layer(use, several[use.name] > 1) for use in uses.found)
    return Layers(found, uses.skipped, tuple(uses.found))


def uses_on_any_size(model: nn.Module) -> Uses:
    """All known modules of a model, on the grid None."""
    found, skipped = [], {}
    for module, name in names_of(model).items():
        if not isinstance(module, KNOWN):
            continue
        if isinstance(module._parameters.get("weight"), nn.UninitializedParameter):
            skipped[name] = LAZY
        elif has_own_forward(module):
            skipped[name] = OWN_FORWARD
        else:
            found.append(Use(name, module, geometry_of(module, None)))
    return Uses(found, skipped | dict(not_known(model, has_run=False)))


def uses_of(
    model: nn.Module,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    fold_batch_norm: bool = False,
) -> Uses:
    """What a call of the model on an example uses."""
    recorder = Recorder(model, batch_norms=fold_batch_norm)
    try:
        run(model, args, keywords)
    finally:
        recorder.close()
    return recorded(model, recorder)


def recorded(model: nn.Module, recorder: Recorder) -> Uses:
    """What a recorder has recorded so far."""
    names, uses = names_of(model), recorder.uses
    ran = {names[use.module] for use in uses}
    others = dict(not_known(model, has_run=True))
    others |= {
        name: NEVER for module, name in names.items() if isinstance(module, KNOWN)
    }
    others = {name: why for name, why in others.items() if name not in ran}
    return Uses(uses, others | recorder.problems)


def _layer(use: Use, several: bool) -> Layer:
    name, weight = use.name, use.weight.detach()
    if use.batch_norm is not None:
        after, norm = use.batch_norm
        gain = batch_norm_gain(norm).to(weight.dtype)
        name, weight = f"{name}+{after}", scale_outputs(weight, gain, use.geometry)
    if several:
        name = f"{name}@{cell(use.geometry.grid)}"
    return Layer(name, weight, use.geometry)
