"""Bound the norms of a model's layers while it trains."""

import time
from typing import Any

import torch
from torch import nn

from .._base import size
from .._bound.enforce import METHODS
from .._training import Bounds, Log, Pass, check_bounds, log_pass
from ._modules import check_has_numbers
from ._pass import Known, bound_all
from ._replicas import replicas_of
from ._targets import Targets, targets_of
from ._watch import Watch


class SpectralClip:
    """Bound the norms of a model's layers every `every` optimizer steps.

    The weights stay plain parameters and the keys of the state_dict do not change, so
    there is nothing to remove after training.

    Parameters
    ----------
    model : torch.nn.Module
        It may be wrapped in DistributedDataParallel or sharded by `fully_shard`: one
        process then bounds each layer and sends it to the others.
    max_norm : float, or mapping of str to float or None
        The bound on the norm of each layer. A mapping maps shell-style name patterns to
        bounds, and the first pattern that matches applies; a layer with None, or
        without a match, is skipped.
    every : int
        The number of optimizer steps from one pass to the next.
    method : {"clip", "project", "scale"}
        "clip" is the paper's method: cheap, and near the bound afterwards. "project"
        moves to a kernel within the bound, usually at most 5 % further than to the
        nearest, "scale" scales the kernel down; both certify the bound.
    example : Any
        An input of the model, which determines the input sizes of its layers: a tensor,
        a tuple of arguments, or a dict of keyword arguments. Without one, the sizes are
        recorded from the model's forward passes before the first pass.
    sizes : {"seen", "every"}
        At which input sizes the bound is to hold. "seen": at those of the example and
        of all calls of the model; one that comes later joins with the next pass, and
        the first time there is a warning. A compiled model shows its example's only.
        "every": at all sizes there are.
    fold_batch_norm : bool
        Whether to bound each layer together with the BatchNorm after it, as one map
        with the running statistics of the moment, which move on after a pass.
    linear : bool
        Whether to bound Linear layers too.
    log : callable, optional
        Called as log(tag, value, step), like `SummaryWriter.add_scalar`: for each layer
        with its norm before and after a pass, and with the share of the time. In a
        process group only the first process logs.
    group : torch.distributed.ProcessGroup, optional
        The processes that hold the same model, if neither DistributedDataParallel nor
        `fully_shard` tells them.

    Attributes
    ----------
    steps : int
        The number of optimizer steps so far.
    last : Pass or None
        What the last pass did.

    Examples
    --------
    >>> model = torch.nn.Conv2d(3, 8, 3, padding=1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> bound = SpectralClip(model, 0.5, every=1, method="project").attach(optimizer)
    >>> _ = model(torch.ones(1, 3, 16, 16)).sum().backward()
    >>> _ = optimizer.step()
    >>> bound.last.changes[0].after <= 0.5
    True
    """

    model: nn.Module
    max_norm: Bounds
    every: int
    method: str
    linear: bool
    log: Log | None
    group: Any
    steps: int
    passes: int
    seconds: float
    last: Pass | None

    def __init__(
        self,
        model: nn.Module,
        max_norm: Bounds = 1.0,
        every: int = 100,
        *,
        method: str = "clip",
        example: Any = None,
        sizes: str = "seen",
        fold_batch_norm: bool = False,
        linear: bool = False,
        log: Log | None = None,
        group: Any = None,
    ) -> None:
        if method not in METHODS:
            raise ValueError(
                f"`method` must be one of {', '.join(METHODS)}, got {method!r}."
            )
        check_bounds(max_norm)
        check_has_numbers(model)
        self.model, self.max_norm, self.method = model, max_norm, method
        self.every = size("every", every, least=1)
        self.linear, self.log, self.group = linear, log, group
        self.steps, self.passes, self.last = 0, 0, None
        self.seconds, self._earlier = 0.0, 0.0
        self._since: float | None = None
        self._known: dict[str, Known] = {}
        self._handles: list[tuple[Any, Any]] = []
        self._targets = Targets([], {})
        self._watch = Watch(model, example, sizes, fold_batch_norm=fold_batch_norm)
        if self._watch.uses.found:
            self._targets = self._targets_now()

    def attach(self, optimizer: torch.optim.Optimizer) -> "SpectralClip":
        """Count the steps of an optimizer from now on, and make a pass when one is due.

        A step that a gradient scaler skips does not count. The steps of several
        optimizers add up.
        """
        plain: Any = optimizer
        while hasattr(plain, "optimizer"):  # a wrapper of Accelerate or Lightning
            plain = plain.optimizer
        parameters = {p for group in plain.param_groups for p in group["params"]}
        if not parameters.intersection(self.model.parameters()):
            raise ValueError(
                "The optimizer must hold parameters of the model, but holds none. Was "
                "it made for another copy of the model?"
            )
        if any(known is plain for known, _ in self._handles):
            return self
        self._since = time.perf_counter() if self._since is None else self._since
        handle = plain.register_step_post_hook(self._after_step)
        self._handles.append((plain, handle))
        self._watch.open()
        return self

    def detach(self) -> None:
        """Remove the hooks from the optimizers and the model."""
        for _, handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watch.close()

    def step(self) -> Pass | None:
        """Count one step, for loops without an optimizer; make a pass if due."""
        self._since = time.perf_counter() if self._since is None else self._since
        self.steps += 1
        return self.apply() if self.steps % self.every == 0 else None

    def apply(self) -> Pass:
        """Make a pass now, which bounds every layer."""
        start = time.perf_counter()
        replicas = replicas_of(self.model, self.group)
        self._watch.update(replicas)
        try:
            self._targets = self._targets_now()
            self.last = bound_all(
                self._targets,
                self.method,
                replicas,
                self._known,
                is_first=not self.passes,
            )
        except ValueError as error:
            raise ValueError(
                f"At step {self.steps} no weight was changed. {error}"
            ) from error
        self.passes += 1
        if self.log is not None and replicas.rank == 0:
            log_pass(self.last, self.log, self.share, self.steps)
        self.seconds += time.perf_counter() - start
        return self.last

    @property
    def share(self) -> float:
        """The fraction of the time since `attach` that the passes have taken."""
        elapsed = self._elapsed()
        return self.seconds / elapsed if elapsed else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs to continue as if uninterrupted.

        That includes a copy of each kernel with a certified norm: the next pass skips
        those that have hardly moved.
        """
        return {
            "steps": self.steps,
            "passes": self.passes,
            "seconds": self.seconds,
            "elapsed": self._elapsed(),
            "known": {name: known.state() for name, known in self._known.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of another `SpectralClip`."""
        self.steps, self.passes = int(state["steps"]), int(state["passes"])
        self.seconds, self._earlier = state["seconds"], state["elapsed"]
        self._since = None if self._since is None else time.perf_counter()
        known = state.get("known", {})  # which earlier versions did not save
        # Without its norm, a kernel may be above the bound that is to hold now.
        self._known = {
            name: Known(**fields)
            for name, fields in known.items()
            if fields["upper"] is not None
        }

    def __repr__(self) -> str:
        return (
            f"SpectralClip(method={self.method!r}, every={self.every}): {self.steps} "
            f"steps, {self.passes} passes, {100 * self.share:.2f} % of the time"
        )

    def _targets_now(self) -> Targets:
        """What is to be bounded: all that is not frozen at the moment."""
        for target in self._targets.found:
            _ = target.parameter  # raises if it was parametrized meanwhile
        return targets_of(self._watch.uses, self.max_norm, linear=self.linear)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # If a gradient scaler skips a step, this hook is not called; but a fused
        # optimizer is called and skips the step itself.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not float(found_inf):
            self.step()

    def _elapsed(self) -> float:
        if self._since is None:
            return self._earlier
        return self._earlier + time.perf_counter() - self._since
