"""Bound the norms of a model's layers while it trains."""

import time
from typing import TYPE_CHECKING, Any

from .._base import size
from .._bound.enforce import METHODS
from .._training import Bounds, Log, Pass, check_bounds, log_pass
from ._pass import bring_inside

if TYPE_CHECKING:

    class Callback:
        """That of Keras, whose type is not stated there."""

        model: Any
        params: dict[str, Any] | None

        def set_model(self, model: Any) -> None: ...

else:
    from keras.callbacks import Callback


class SpectralClip(Callback):
    """Bound the norms of a model's layers every `every` batches.

    A callback for `fit`. The weights stay plain variables, so there is nothing to
    remove after training.

    Parameters
    ----------
    max_norm : float, or mapping of str to float or None
        The bound on the norm of each layer. A mapping maps shell-style patterns for the
        names of `layers` to bounds, and the first pattern that matches applies; a layer
        with None, or without a match, is skipped.
    every : int
        The number of batches from one pass to the next, over all epochs. If several
        batches are executed at once (`steps_per_execution`), a pass that is due among
        them is made after them.
    method : {"clip", "project", "scale"}
        "clip" is the paper's method: cheap, and near the bound afterwards. "project"
        moves to a kernel within the bound, usually at most 5 % further than to the
        nearest, "scale" scales the kernel down; both certify the bound, at
        the input sizes of `layers`.
    linear : bool
        Whether to bound Dense layers too.
    fold_batch_norm : bool
        Whether to bound each layer together with the BatchNormalization after it, with
        the moving statistics of the moment. They move on: call `apply` at the end. The
        model must be a graph of layers, functional or Sequential, wherever it has a
        BatchNormalization.
    log : callable, optional
        Called as log(tag, value, step) for each layer with its norm before and after a
        pass, and with the share of the time.

    Attributes
    ----------
    steps : int
        The number of batches so far. A resumed run may set it:
        `clip.steps = int(model.optimizer.iterations)`.
    passes : int
        The number of passes so far.
    last : Pass or None
        What the last pass did.
    """

    max_norm: Bounds
    every: int
    method: str
    linear: bool
    fold_batch_norm: bool
    log: Log | None
    steps: int
    passes: int
    seconds: float
    last: Pass | None

    def __init__(
        self,
        max_norm: Bounds = 1.0,
        every: int = 100,
        *,
        method: str = "clip",
        linear: bool = False,
        fold_batch_norm: bool = False,
        log: Log | None = None,
    ) -> None:
        super().__init__()
        check_bounds(max_norm)
        if method not in METHODS:
            raise ValueError(
                f"`method` must be one of {', '.join(METHODS)}, got {method!r}."
            )
        self.max_norm, self.method = max_norm, method
        self.every = size("every", every, least=1)
        self.linear, self.log = linear, log
        self.fold_batch_norm = fold_batch_norm
        self.steps, self.passes, self.last = 0, 0, None
        self.seconds, self._earlier = 0.0, 0.0
        self._since: float | None = None
        self._first = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._since = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._earlier, self._since = self._elapsed(), None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        # Several batches, if they are executed at once; Keras counts the last ones of
        # an epoch as if there were as many as ever.
        steps = (self.params or {}).get("steps")
        last = batch if steps is None else min(batch, steps - 1)
        before = self.steps
        self.steps += last - self._first + 1
        if self.steps // self.every > before // self.every:
            self.apply()

    def apply(self) -> Pass:
        """Make a pass now: bring every layer within its bound."""
        start, model = time.perf_counter(), self.model
        if model is None:
            raise ValueError(
                "A SpectralClip must have a model before `apply`, and has none yet. "
                "Pass it to `fit` first, or call `set_model(model)`."
            )
        self.last = bring_inside(
            model,
            self.max_norm,
            self.method,
            linear=self.linear,
            fold_batch_norm=self.fold_batch_norm,
            in_training=True,
        )
        self.passes += 1
        if self.log is not None:
            log_pass(self.last, self.log, self.share, self.steps)
        self.seconds += time.perf_counter() - start
        return self.last

    @property
    def share(self) -> float:
        """The fraction of the training time so far that the passes have taken."""
        elapsed = self._elapsed()
        return self.seconds / elapsed if elapsed else 0.0

    def __repr__(self) -> str:
        return (
            f"SpectralClip(method={self.method!r}, every={self.every}): {self.steps} "
            f"batches, {self.passes} passes, {100 * self.share:.2f} % of the time"
        )

    def _elapsed(self) -> float:
        if self._since is None:
            return self._earlier
        return self._earlier + time.perf_counter() - self._since
