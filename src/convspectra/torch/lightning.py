"""`SpectralClip` for Lightning's Trainer."""

from typing import Any

import lightning

from ._spectral_clip import SpectralClip


class SpectralClipCallback(lightning.Callback):
    """Bound the layers of a LightningModule while a Trainer trains it.

    It counts the optimizers' own steps, so gradient accumulation and skipped steps are
    handled correctly. Norms are sent to the Trainer's loggers, and the step count is
    saved in its checkpoints.

    Parameters
    ----------
    *args, **kwargs
        The arguments of `SpectralClip` after the model.

    Attributes
    ----------
    clip : SpectralClip or None
        The `SpectralClip` in use, once training has begun.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self.clip: SpectralClip | None = None
        self.saved: dict[str, Any] = {}

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        def log(tag: str, value: float, step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics({tag: value}, step)

        model = trainer.strategy.model or pl_module  # in DDP, if it is
        self.clip = SpectralClip(model, *self.args, **{"log": log, **self.kwargs})
        if self.saved:
            self.clip.load_state_dict(self.saved)
        for optimizer in trainer.optimizers:
            self.clip.attach(optimizer)

    def on_train_end(
        self,
        trainer: lightning.Trainer,  # noqa: ARG002
        pl_module: lightning.LightningModule,  # noqa: ARG002
    ) -> None:
        if self.clip is not None:
            self.clip.detach()

    def state_dict(self) -> dict[str, Any]:
        return self.saved if self.clip is None else self.clip.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.saved = state_dict
