"""`SpectralClip` for the Trainer of Transformers."""

from typing import Any

import torch.distributed as dist
import transformers

from ._spectral_clip import SpectralClip


class SpectralClipCallback(transformers.TrainerCallback):
    """Bound the layers of a model while a Trainer trains it.

    It counts the optimizer's own steps, so gradient accumulation and skipped steps are
    handled correctly. A resumed run continues with the Trainer's step count.

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

    def on_train_begin(
        self,
        args: Any,  # noqa: ARG002
        state: transformers.TrainerState,
        control: Any,  # noqa: ARG002
        **kwargs: Any,
    ) -> None:
        # The model comes without what DDP puts around it, which knows the processes.
        group = dist.group.WORLD if dist.is_initialized() else None
        self.clip = SpectralClip(
            kwargs["model"], *self.args, **{"group": group, **self.kwargs}
        )
        self.clip.steps = state.global_step
        self.clip.attach(kwargs["optimizer"])

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self.clip is not None:
            self.clip.detach()
