"""Pictures: what is drawn is read back from the axes."""

import sys

import numpy as np
import pytest
from matplotlib import figure
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
    with pytest.raises(ModuleNotFoundError, match=r"pip install convspectra\[plot\]"):
        import convspectra.plot  # noqa: F401
