"""What the config.json of transformers or timm says of a model's convolutions.

Such a file holds the numbers from which a program builds the model. They determine a
layer only together with that program: hence a rule for each kind of model, of which the
tests ask transformers whether it holds. Whatever no rule is for stays unknown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .records import Kernel

PLAIN = {"dilation": 1, "groups": 1, "boundary": "zeros", "transposed": False}

# Vision transformers that cut an image into patches by a convolution.
PATCHES = (
    *("beit", "blip_vision_model", "clip_vision_model", "convnext", "convnextv2"),
    *("data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit"),
    *("ijepa", "siglip_vision_model", "swin", "swinv2", "vit", "vit_mae", "vit_msn"),
    "yolos",
)
# Models of speech that begin with convolutions of the waveform.
SPEECH = (
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat"),
    *("wav2vec2", "wav2vec2-conformer", "wavlm"),
)

Config = Mapping[str, Any]


def is_hugging_face(config: Config) -> bool:
    """Whether a configuration is of transformers or timm."""
    return "model_type" in config or "pretrained_cfg" in config


def described(config: Config, kernel: Kernel) -> dict[str, Any]:
    """What the configuration states of a kernel, as arguments of `Geometry`."""
    for part in _parts(config):
        for rule in RULES:
            found = rule.name.search(kernel.name)
            if part.get("model_type") in rule.kinds and found:
                index = [int(group) for group in found.groups() if group]
                try:
                    return rule.stated(part, kernel.shape, *index)
                except (TypeError, LookupError, ValueError):
                    return {}  # it does not state what it should
    return _of_timm(config, kernel)


def _parts(config: Config) -> Iterator[Config]:
    """A configuration, and that of the vision model inside it."""
    yield config
    inner = config.get("vision_config")
    if isinstance(inner, dict):
        yield inner


def _patches(config: Config, shape: tuple[int, ...]) -> dict[str, Any]:
    """Each patch is read once: the stride is the size of the kernel."""
    patch, image = _pair(config["patch_size"]), _pair(config["image_size"])
    _check(shape[1:], (config["num_channels"], *patch))
    return PLAIN | {"grid": image, "stride": patch, "padding": ((0, 0), (0, 0))}


def _speech(config: Config, shape: tuple[int, ...], index: int) -> dict[str, Any]:
    _check(shape[2:], (config["conv_kernel"][index],))
    return PLAIN | {
        "stride": (_whole(config["conv_stride"][index]),),
        "padding": ((0, 0),),
    }


def _overlapping(config: Config, shape: tuple[int, ...], index: int) -> dict[str, Any]:
    """Segformer: patches that overlap by about half of their size."""
    taps, stride = (_whole(config[k][index]) for k in ("patch_sizes", "strides"))
    _check(shape[2:], (taps, taps))
    half = taps // 2
    return PLAIN | {"stride": (stride, stride), "padding": ((half, half), (half, half))}


def _of_timm(config: Config, kernel: Kernel) -> dict[str, Any]:
    """The layer that reads the image has its size, and reads all its channels."""
    stated = config.get("pretrained_cfg")
    if not isinstance(stated, dict):
        return {}
    first = stated.get("first_conv")
    names = first if isinstance(first, list) else [first]
    if kernel.name not in [f"{name}.weight" for name in names]:
        return {}
    try:
        channels, *grid = map(_whole, stated["input_size"])
    except (TypeError, LookupError, ValueError):
        return {}
    if (channels, len(grid)) != (kernel.shape[1], len(kernel.shape) - 2):
        return {}
    return {"grid": tuple(grid), "groups": 1}


def _pair(value: Any) -> tuple[int, int]:
    one, other = value if isinstance(value, list) else (value, value)
    return _whole(one), _whole(other)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("no size")
    return value


def _check(found: Sequence[int], stated: Sequence[Any]) -> None:
    """See that a kernel is the one that is described."""
    if list(found) != list(stated):
        raise ValueError("another kernel")


@dataclass(frozen=True, slots=True)
class Rule:
    """What some models state of the kernels with such names."""

    kinds: tuple[str, ...]
    name: re.Pattern[str]
    stated: Callable[..., dict[str, Any]]  # of a configuration, a shape and an index


RULES = (
    Rule(
        PATCHES, re.compile(r"patch_embedding(?:s|s\.projection)?\.weight$"), _patches
    ),
    Rule(SPEECH, re.compile(r"\bconv_layers\.([0-9]{1,3})\.conv\.weight$"), _speech),
    Rule(
        ("segformer",),
        re.compile(
            r"(?:\bpatch_embeddings\.([0-9]{1,3})"  # as files have it
            r"|\bstages\.([0-9]{1,3})\.patch_embeddings)\.proj\.weight$"  # since 5.0
        ),
        _overlapping,
    ),
)
