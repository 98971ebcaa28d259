"""The figure of `alternating`: rounds, clips in training, tori."""

from collections.abc import Mapping
from typing import Any

from .figure import new_figure, save
from .options import Options

COLORS = {"alternating": "#b2182b", "Dykstra": "#2166ac"}
LEAST = 1e-4  # what is nearer to the bound, or inside, is drawn here


def draw(results: Mapping[str, Any], options: Options) -> None:
    """Draw how far from the bound norms are, and how far a torus is from its layer."""
    figure, (rounds, training, torus) = new_figure(columns=3)
    for name, result in results.items():
        if name.startswith("rounds"):
            for method, color in COLORS.items():
                x = [point["rounds"] for point in result[method]]
                y = [max(point["excess"], LEAST) for point in result[method]]
                thick = 2.5 if name == "rounds, random" else 0.7
                rounds.plot(x, y, color=color, linewidth=thick)
            rounds.plot(result["project"]["rounds"], LEAST, "k.", markersize=4)
        elif name.startswith("torus"):
            x = [min(layer["grid"]) for layer in result]
            middle = [(layer["low"] + layer["high"]) / 2 for layer in result]
            torus.plot(x, middle, "o", markersize=3, label=name.removeprefix("torus, "))
        elif result["bound"] == 0.5:
            for norms in result["norms"].values():
                for when, color in (("before", "#2166ac"), ("after", "#b2182b")):
                    training.plot(norms["step"], norms[when], color=color, lw=0.7)
            training.axhline(result["bound"], color="black", linestyle="--", lw=1)
    for method, color in COLORS.items():
        rounds.plot([], [], color=color, label=method)
    rounds.plot([], [], "k.", label="`project`, which ends inside")
    rounds.set(xscale="log", yscale="log", xlabel="rounds", ylabel="norm / bound - 1")
    rounds.set_title("thick: a random kernel; thin: trained ones", fontsize="small")
    rounds.legend(frameon=False, fontsize="small")
    training.set(xlabel="step of training", ylabel="norm of a layer")
    training.set_title(
        "clipped at 0.5: blue just before a clip, red just after", fontsize="small"
    )
    torus.set(xscale="log", xlabel="side of the layer's input")
    torus.set_ylabel("norm of the torus / norm of the layer - 1")
    torus.axhline(0, color="0.5", linewidth=1)
    torus.legend(frameon=False, fontsize="xx-small")
    save(figure, options.folder("alternating"), "alternating")
