"""The figure of `signals`: norms of gradients by depth."""

from collections.abc import Mapping
from typing import Any

from . import figure
from .options import Options

COLORS: dict[str, str] = {
    "normal / 2": "#2166ac",
    "normal": "#777777",
    "2 x normal": "#b2182b",
    "orthogonal": "#1b7837",
}
FIRST = tuple(COLORS)  # how first weights are drawn


def name_of(first: str, clipped: bool) -> str:
    """The name of an arm."""
    return f"{first}, clipped" if clipped else first


def draw(
    options: Options, at_first: Mapping[str, Any], trained: Mapping[str, Any]
) -> None:
    """Draw two panels of stacks at their first weights, and one of short trainings."""
    drawn, (linear, relu, training) = figure.new_figure(3)
    for ax, kind in ((linear, "linear"), (relu, "ReLU")):
        for name, result in at_first.items():
            arm, _, seed = name.rpartition(", ")
            if seed == "seed 0":
                y = [norm / result[kind][0] for norm in result[kind]]
                ax.plot(y, _style(arm), color=_color(arm), label=arm)
        ax.set(yscale="log", title=f"{kind} stack", xlabel="layers from the output")
    linear.set_ylabel("norm of the gradient / at the output")
    linear.legend(fontsize=7, frameon=False)
    for name, result in trained.items():
        arm, _, seed = name.partition(", ")[2].rpartition(", ")
        if result["norms"] is not None and seed == "seed 0":
            y = [n for n, k in zip(result["norms"], result["kernel"]) if k == 3]
            training.plot(y[::-1], _style(arm), color=_color(arm), label=arm)
    training.set(yscale="log", title="in training", xlabel="3x3 layers from the output")
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    training.legend(fontsize=7, frameon=False, **beside)
    figure.save(drawn, options.folder("signals"), "signals")


def _style(arm: str) -> str:
    return "--" if "clipped" in arm else "-"


def _color(arm: str) -> str:
    return COLORS[arm.partition(",")[0]]
