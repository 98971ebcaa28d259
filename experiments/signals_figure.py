"""The figure of `signals`: norms of gradients by depth."""

import statistics
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
    """Draw two panels of stacks at their first weights, and one of each rate."""
    drawn, panels = figure.new_figure(3, rows=2)
    linear, relu, for_legend, *of_rates = panels
    for ax, kind in ((linear, "linear"), (relu, "ReLU")):
        for name, result in at_first.items():
            arm, _, seed = name.rpartition(", ")
            if seed == "seed 0":
                y = [norm / result[kind][0] for norm in result[kind]]
                ax.plot(y, _style(arm), color=_color(arm), label=arm)
        ax.set(yscale="log", title=f"{kind} stack", xlabel="layers from the output")
    linear.set_ylabel("norm of the gradient / at the output")
    by_rate: dict[str, dict[str, list[list[float]]]] = {}
    for name, result in trained.items():
        arm, rate, _ = name.removeprefix("trained, ").rsplit(", ", 2)
        arms = by_rate.setdefault(rate, {})
        if result["norms"] is not None:
            y = [n for n, k in zip(result["norms"], result["kernel"]) if k == 3]
            arms.setdefault(arm, []).append(y[::-1])
    for ax, (rate, arms) in zip(of_rates, by_rate.items()):
        for arm, seeds in arms.items():
            medians = [statistics.median(layer) for layer in zip(*seeds)]
            ax.plot(medians, _style(arm), color=_color(arm), label=arm)
        ax.sharey(of_rates[0])
        title = f"in training, {rate}: median of seeds that did not diverge"
        ax.set(yscale="log", xlabel="3x3 layers from the output")
        ax.set_title(title, fontsize="medium")
    of_rates[0].set_ylabel("norm of the gradient")
    lines = {str(line.get_label()): line for ax in panels for line in ax.get_lines()}
    named = sorted(lines, key=lambda arm: (FIRST.index(_first(arm)), arm))
    for_legend.legend([lines[arm] for arm in named], named, frameon=False, loc="center")
    for_legend.set_axis_off()
    figure.save(drawn, options.folder("signals"), "signals")


def _style(arm: str) -> str:
    return "--" if "clipped" in arm else "-"


def _color(arm: str) -> str:
    return COLORS[_first(arm)]


def _first(arm: str) -> str:
    return arm.partition(",")[0]
