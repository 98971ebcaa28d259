"""Pictures: what is drawn is read back from the axes."""

import io
import sys

import numpy as np
import pytest
from matplotlib import cbook, figure
from oracles import descending, make, tolerance, values_by_matrix

from convspectra import Geometry, Layer, Report, plot, spectra


@pytest.fixture
def ax():
    """Axes of a figure that no window and no global state knows of."""
    return figure.Figure().subplots()


def test_a_spectrum_is_the_sorted_values_over_their_rank(ax, rng):
    weight, geometry = make("strided", rng)
    (spectrum,) = spectra([Layer("conv", weight, geometry)]).layers
    plot.draw_spectrum(spectrum, ax)
    values, norm = ax.get_lines()
    want = values_by_matrix(weight, geometry)
    atol = tolerance(want, "float64")
    np.testing.assert_allclose(values.get_ydata(), want, atol=atol)
    np.testing.assert_array_equal(values.get_xdata(), np.linspace(0, 1, want.size))
    np.testing.assert_array_equal(norm.get_ydata(), 2 * [spectrum.norm.upper])
    assert (ax.get_title(), ax.get_yscale()) == ("conv", "log")
    assert ax.get_ylabel() == "singular value"
    low, high = ax.get_ylim()
    assert 0 < low < high > want[0]


def test_a_report_has_a_line_per_layer_from_first_to_last(ax, rng):
    layers = [Layer(case, *make(case, rng)) for case in ("plain", "zeros", "dilated")]
    report = spectra(layers)
    plot.draw_report(report, ax)
    lines = ax.get_lines()
    for line, layer in zip(lines, report.layers, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), descending(layer.values))
    assert len({tuple(line.get_color()) for line in lines}) == 3
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["plain (exact)", "zeros", "dilated (exact)"]
    assert ax.get_ylabel() == "singular value of the layer or its torus"


@pytest.mark.parametrize("ratio", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_ratios_and_shares_of_the_rank(ratio, normalized, ax, rng):
    report = spectra([Layer(case, *make(case, rng)) for case in ("plain", "dilated")])
    plot.draw_report(report, ax, ratio=ratio, normalized=normalized)
    for line, layer in zip(ax.get_lines(), report.layers, strict=True):
        want = descending(layer.values)
        x = np.linspace(0, 1, want.size) if normalized else 1 + np.arange(want.size)
        np.testing.assert_array_equal(line.get_xdata(), x)
        want = want / want[0] if ratio else want
        np.testing.assert_array_equal(line.get_ydata(), want)
    assert ax.get_xscale() == ("linear" if normalized else "log")


def test_a_heat_map_has_frequency_zero_in_the_middle(ax, rng):
    weight = np.ones((1, 1, 3, 3)) / 9  # lets the mean pass, and little else
    (spectrum,) = spectra([Layer("blur", weight, Geometry(grid=(6, 9)))]).layers
    plot.draw_heat_map(spectrum, ax)
    (image,) = ax.get_images()
    shown = image.get_array()
    row, column = np.unravel_index(np.argmax(shown), shown.shape)
    assert shown.max() == pytest.approx(1)
    left, right, bottom, top = image.get_extent()
    assert left + (column + 0.5) * (right - left) / 9 == pytest.approx(0)
    assert bottom + (row + 0.5) * (top - bottom) / 6 == pytest.approx(0)
    line = spectra([Layer("line", np.ones((1, 1, 3)), Geometry(grid=4))]).layers[0]
    with pytest.raises(ValueError, match="two axes and a grid, got 'line' with 1 axes"):
        plot.draw_heat_map(line, ax)


def test_a_witness_is_drawn_by_its_strongest_channel(ax, rng):
    image = rng.standard_normal((3, 4, 5)) * np.array([1, 5, 2])[:, None, None]
    plot.draw_witness(image, ax)
    (drawn,) = ax.get_images()
    np.testing.assert_array_equal(drawn.get_array(), image[1])
    assert "channel 1 of 3" in ax.get_title()


def test_trajectories_have_a_line_per_layer_with_gaps(ax):
    ends = {"a": {"lower": [1.0, 2.0], "upper": [1.5, None]}}
    plot.draw_trajectories({"checkpoints": ["s1", "s2"], "layers": ends}, ax)
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [1.5, np.nan])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["s1", "s2"]


@pytest.mark.parametrize("name", [r"a$\frac$b", "a$b$", "caf\udce9\0.npy"])
def test_any_name_is_drawn_as_it_is(ax, rng, name):
    (spectrum,) = spectra([Layer(name, *make("plain", rng))]).layers
    bounds = {"lower": [1.0, 2.0], "upper": [1.0, 2.0]}
    norms = {"checkpoints": [name, name], "layers": {name: bounds}}
    pictures = (
        lambda: plot.draw_spectrum(spectrum, ax),
        lambda: plot.draw_report(Report((spectrum,)), ax),
        lambda: plot.draw_heat_map(spectrum, ax),
        lambda: plot.draw_trajectories(norms, ax),
    )
    for draw in pictures:
        ax.clear()
        draw()
        ax.figure.savefig(io.BytesIO(), format="svg")
    shown = name if name.isprintable() else ascii(name)
    text = ax.get_xticklabels()[0].get_text()
    assert not cbook.is_math_text(text)
    assert text.replace(r"\$", "$") == shown


def test_values_of_a_torus_are_labeled_so(ax, rng):
    report = spectra([Layer("zeros", *make("zeros", rng))])
    plot.draw_report(report, ax)
    assert ax.get_ylabel() == "singular value of the torus"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["zeros"]


def test_many_layers_get_a_color_bar(ax, rng):
    (layer,) = spectra([Layer("plain", *make("plain", rng))]).layers
    plot.draw_report(Report((layer,) * 20), ax)
    assert ax.get_legend() is None
    assert len(ax.figure.axes) == 2
    assert ax.figure.axes[1].get_ylabel() == "layer, from first to last"


def test_zeros_and_nothing_can_be_drawn(ax):
    zero = Layer("zero", np.zeros((2, 2, 3)), Geometry(grid=4))
    plot.draw_report(spectra([zero]), ax)
    plot.draw_spectrum(spectra([zero]).layers[0], ax)
    plot.draw_report(Report(()), ax)
    ax.figure.canvas.draw()


def test_drawing_opens_and_saves_nothing(ax, rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = "matplotlib.pyplot" in sys.modules
    plot.draw_report(spectra([Layer("plain", *make("plain", rng))]), ax)
    assert not list(tmp_path.iterdir())
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_without_matplotlib_the_module_says_what_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, "convspectra.plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'convspectra\[plot\]'"):
        import convspectra.plot  # noqa: F401


def test_a_long_line_keeps_its_shape_and_its_ends(ax, rng):
    weight = rng.standard_normal((1, 1, 3, 3))
    report = spectra([Layer("long", weight, Geometry((200, 200)))])
    plot.draw_report(report, ax)
    (line,) = ax.get_lines()
    want = descending(report.layers[0].values)
    ranks, values = line.get_data()
    assert len(ranks) < want.size / 4
    np.testing.assert_array_equal(values, want[ranks - 1])
    assert (ranks[[0, -1]] == [1, want.size]).all()
    np.testing.assert_array_equal(ranks[:50], 1 + np.arange(50))
