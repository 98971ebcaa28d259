"""Claim: a residual network of 367 thousand parameters learns CIFAR-10 to 88 % or more.

It does so in about half an hour of two CPU cores, and its ONNX file stays under two
megabytes. This is the network that `convspectra report` reads when no model is named.
The accuracy is that of the last epoch: no epoch is chosen by its test images.

An interrupted run goes on after its last whole epoch, to the same numbers. The exit
code is the verdict.
"""

import hashlib
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import PIL
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

from .claims import Claim
from .images import CLASSES, MEAN, SIDE, STD, Images, read_cifar10
from .options import Options
from .record import commit
from .talk import say

SEED, THREADS = 0, 2
STEM, BLOCKS = 32, ((48, 2), (48, 1), (64, 2), (64, 1), (96, 2))  # (channels, stride)
EPOCHS, BATCH = 20, 128
PEAK, WARMUP, MOMENTUM, DECAY, SMOOTHING = 0.2, 0.25, 0.9, 5e-4, 0.05
SHIFT = 4
ACCURACY, BYTES = 0.88, 2_000_000  # the claim: at least, and less than
COMPARED, DIFFERENCE = 200, 1e-4  # images, and how far apart their logits may be
OPSET, IR_VERSION = 17, 8  # those of 2022, for older runtimes


class ConvNorm(nn.Module):
    """A convolution without bias, and the BatchNorm of its outputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        side = kernel // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, side, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Block(nn.Module):
    """Two 3x3 convolutions beside the identity, or beside a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        same = stride == 1 and inputs == outputs
        self.first = ConvNorm(inputs, outputs, 3, stride)
        self.second = ConvNorm(outputs, outputs, 3, 1)
        self.shortcut = None if same else ConvNorm(inputs, outputs, 1, stride)
        nn.init.zeros_(self.second.norm.weight)  # a block starts as its shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(relu(self.first(x)))
        return relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Network(nn.Module):
    """A stem, the blocks, the mean over the grid and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        widths = [STEM, *(channels for channels, _ in BLOCKS)]
        blocks = [Block(inputs, *block) for inputs, block in zip(widths, BLOCKS)]
        self.stem = ConvNorm(3, STEM, 3, 1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(relu(self.stem(x))).mean((2, 3)))


def normalized(pixels: Tensor) -> Tensor:
    """Bytes as what the network takes: about zero mean and unit variance."""
    mean, std = (torch.tensor(x).reshape(3, 1, 1) for x in (MEAN, STD))
    x = (pixels.float() / 255 - mean) / std
    return x.contiguous(memory_format=torch.channels_last)


def batches(images: Images, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image once, in random order, shifted and perhaps mirrored."""
    count = len(images.labels)
    order = torch.randperm(count, generator=rng)
    corners = torch.randint(2 * SHIFT + 1, (2, count), generator=rng)
    mirrored = torch.rand(count, generator=rng) < 0.5
    for chosen in order.split(BATCH):
        x = pad(normalized(images.pixels[chosen]), (SHIFT,) * 4, mode="reflect")
        x = x.unfold(2, SIDE, 1).unfold(3, SIDE, 1)  # (b, 3, corners, corners, 32, 32)
        x = x[torch.arange(len(chosen)), :, *corners[:, chosen]]  # (b, 3, 32, 32)
        x = torch.where(mirrored[chosen, None, None, None], x.flip(3), x)
        yield x.contiguous(memory_format=torch.channels_last), images.labels[chosen]


@torch.no_grad()
def logits(network: Network, pixels: Tensor) -> Tensor:
    """What the network says of images, with its BatchNorms fixed."""
    network.eval()
    return torch.cat([network(normalized(part)) for part in pixels.split(BATCH)])


def accuracy(network: Network, images: Images) -> float:
    right = logits(network, images.pixels).argmax(1) == images.labels
    return right.double().mean().item()


class Training:
    """A network and what its training needs, from the first weights or from a file."""

    def __init__(self, images: Images, epochs: int, saved: Path) -> None:
        torch.manual_seed(SEED)  # for the first weights: all later chance is from `rng`
        self.rng = torch.Generator().manual_seed(SEED)
        self.images, self.saved, self.log = images, saved, []
        self.network = Network()
        kernels = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim == 1]
        groups = [{"params": kernels, "weight_decay": DECAY}, {"params": others}]
        self.optimizer = torch.optim.SGD(groups, PEAK, momentum=MOMENTUM, nesterov=True)
        steps = epochs * -(-len(images.labels) // BATCH)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            PEAK,
            total_steps=steps,
            pct_start=WARMUP,
            anneal_strategy="linear",
            cycle_momentum=False,
        )
        self.parts = (self.network, self.optimizer, self.schedule)
        # What must be the same for a run to go on; threads since they split the sums.
        numbers = (PEAK, WARMUP, MOMENTUM, DECAY, SMOOTHING, torch.get_num_threads())
        self.recipe = str((SEED, STEM, BLOCKS, SHIFT, BATCH, steps, *numbers))
        if saved.exists():
            self._load()

    def save(self) -> None:
        parts = [part.state_dict() for part in self.parts]
        state = {"recipe": self.recipe, "log": self.log, "rng": self.rng.get_state()}
        partial = self.saved.with_suffix(".part")
        torch.save(state | {"parts": parts}, partial)
        partial.replace(self.saved)

    def _load(self) -> None:
        state = torch.load(self.saved, weights_only=True)
        if state["recipe"] != self.recipe:
            raise ValueError(
                f"{str(self.saved)!r} must be of the training {self.recipe}, got "
                f"{state['recipe']}. Name another folder, or remove that file."
            )
        for part, saved in zip(self.parts, state["parts"]):
            part.load_state_dict(saved)
        self.rng.set_state(state["rng"])
        self.log = state["log"]

    def epoch(self) -> float:
        """See every image once, and return the mean loss."""
        self.network.train()
        total = 0.0
        for x, labels in batches(self.images, self.rng):
            loss = cross_entropy(self.network(x), labels, label_smoothing=SMOOTHING)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.item() * len(labels)
        return total / len(self.images.labels)


def train(images: Images, test: Images, out: Path, epochs: int) -> Training:
    """Train to the last epoch, saving after each, with a line in OUT/log.jsonl."""
    training = Training(images, epochs, out / "training.pt")
    while (done := len(training.log)) < epochs:
        start = time.perf_counter()
        line = {"epoch": done + 1, "train_loss": training.epoch()}
        line["test_accuracy"] = accuracy(training.network, test)
        line["seconds"] = round(time.perf_counter() - start, 2)
        training.log.append(line)
        # Before the save, and whole: an epoch that is run again replaces its line.
        lines = "".join(json.dumps(line) + "\n" for line in training.log)
        (out / "log.jsonl").write_text(lines)
        training.save()
        say(f"of {epochs}: {json.dumps(line)}")
    return training


def _nodes(network: Network) -> list[onnx.NodeProto]:
    """The network from `images` to `logits`, each node named after its output."""
    nodes = []

    def add(kind: str, output: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def conv_norm(name: str, module: ConvNorm, x: str) -> str:
        conv, norm = module.conv, f"{name}.norm"
        sizes = {"kernel_shape": conv.kernel_size, "strides": conv.stride}
        pads = [size // 2 for size in conv.kernel_size] * 2
        x = add("Conv", f"{name}.conv", x, f"{name}.conv.weight", pads=pads, **sizes)
        state = (
            f"{norm}.{s}" for s in ("weight", "bias", "running_mean", "running_var")
        )
        return add("BatchNormalization", norm, x, *state, epsilon=module.norm.eps)

    x = add("Relu", "stem.relu", conv_norm("stem", network.stem, "images"))
    for name, block in network.named_modules():
        if isinstance(block, Block):
            y = conv_norm(f"{name}.first", block.first, x)
            y = add("Relu", f"{name}.first.relu", y)
            y = conv_norm(f"{name}.second", block.second, y)
            if block.shortcut is not None:
                x = conv_norm(f"{name}.shortcut", block.shortcut, x)
            x = add("Relu", f"{name}.relu", add("Add", f"{name}.add", y, x))
    x = add("Flatten", "flat", add("GlobalAveragePool", "mean", x))
    add("Gemm", "logits", x, "head.weight", "head.bias", transB=1)
    return nodes


def onnx_model(network: Network, facts: dict[str, Any]) -> onnx.ModelProto:
    """The network with its weights under their names in the state dict, and `facts`."""
    single, state = onnx.TensorProto.FLOAT, network.state_dict()
    images = helper.make_tensor_value_info("images", single, ["batch", 3, SIDE, SIDE])
    output = helper.make_tensor_value_info("logits", single, ["batch", CLASSES])
    weights = [
        numpy_helper.from_array(tensor.numpy(), name)
        for name, tensor in state.items()
        if not name.endswith("num_batches_tracked")
    ]
    graph = (_nodes(network), "cifar10_resnet", [images], [output], weights)
    model = helper.make_model(
        helper.make_graph(*graph),
        producer_name="convspectra/experiments/train_embedded.py",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        doc_string="A residual network trained on CIFAR-10 (Krizhevsky, 2009). It "
        f"takes RGB in 0 .. 1 less the mean {MEAN}, divided by the deviation {STD}.",
    )
    helper.set_model_props(model, {name: str(fact) for name, fact in facts.items()})
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def compare(path: Path, network: Network, pixels: Tensor) -> dict[str, Any]:
    """Whether file and network name the same classes, and how far logits differ."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    feed = {"images": normalized(pixels).contiguous().numpy()}
    (found,) = ReferenceEvaluator(model).run(None, feed)
    want = logits(network, pixels).numpy()
    same = np.array_equal(np.argmax(found, 1), np.argmax(want, 1))
    return {"same_classes": same, "difference": float(np.abs(found - want).max())}


def train_and_export(data: Path, out: Path, epochs: int) -> dict[str, Any]:
    """Train, export and compare; what is returned is in OUT/result.json too."""
    images, test = read_cifar10(data)
    out.mkdir(parents=True, exist_ok=True)
    training = train(images, test, out, epochs)
    network, path = training.network, out / "cifar10_resnet.onnx"
    versions = {m.__name__: m.__version__ for m in (np, onnx, PIL, torch)}
    facts = {
        "test_accuracy": accuracy(network, test),
        "parameters": sum(p.numel() for p in network.parameters()),
        "seed": SEED,
        "epochs": epochs,
        "images": [len(images.labels), len(test.labels)],
        "seconds": round(sum(line["seconds"] for line in training.log)),
        "threads": torch.get_num_threads(),
        "versions": versions | {"python": platform.python_version()},
        "commit": commit(),
        "script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    model = onnx_model(network, facts).SerializeToString(deterministic=True)
    path.write_bytes(model)
    facts |= {"bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}
    facts |= compare(path, network, test.pixels[:COMPARED])
    exact = facts["same_classes"] and facts["difference"] <= DIFFERENCE
    right = facts["test_accuracy"] >= ACCURACY
    result = facts | {"holds": right and exact and len(model) < BYTES}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def run(options: Options) -> list[Claim]:
    """Train the network at its one scale, and write it beside its result.json."""
    torch.set_num_threads(THREADS)
    folder = options.folder("train_embedded")
    found = train_and_export(options.data_folder(), folder, EPOCHS)
    accuracy, size = found["test_accuracy"], found["bytes"]
    return [
        Claim(
            f"{found['parameters']} parameters learn CIFAR-10 in {found['epochs']} "
            "epochs, and their ONNX file says the same",
            f"at least {100 * ACCURACY:.0f} %, under {BYTES / 1e6:.0f} MB (our own)",
            f"{100 * accuracy:.2f} %, {size / 1e6:.2f} MB",
            found["holds"],
        )
    ]
