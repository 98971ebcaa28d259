"""The report page in a real browser: what it shows is read back from there."""

# ruff: noqa: RUF001 (the page has real dashes and multiplication signs)

import os
import shutil
import socket
import sys
from importlib.resources import files

import numpy as np
import pytest

from convspectra._report.page import page

RLO, LS, HALF = "\u202e", "\u2028", "\ud800"  # turns text, ends lines, is no character
HOSTILE = [
    "</script><script>document.title = 'run'</script>",
    "<img src=x onerror=\"document.title = 'run'\">",
    "<b>bold</b> &lt;i&gt; %{x} {{data}} $x^2$",
    f"gpj.{RLO}exe{LS}\0{HALF}",
    "'\"`${document.title = 'run'}",
    "__proto__",
    "x" * 10_000,
]


@pytest.fixture(scope="module")
def tab():
    """A tab of Chromium as it is installed; under CI it must be."""
    program = shutil.which("chromium")
    if program is None:
        assert os.environ.get("CI") != "true", "CI must have chromium"
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    quiet = ("background-networking", "component-update", "sync", "gpu")
    flags = ["--no-sandbox", *(f"--disable-{name}" for name in quiet)]
    with playwright.sync_playwright() as driver:
        # One for all tests: it compiles plotly once, and not for every page.
        yield driver.chromium.launch(executable_path=program, args=flags).new_page()


@pytest.fixture
def show(tab, tmp_path):
    """Open a document's page. Whatever it complains of or asks for is a failure."""
    problems, pages = [], []

    def on_console(message):
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def on_error(error):
        problems.append(str(error))

    def on_request(request):
        if request.url.partition("#")[0] != pages[-1]:
            problems.append(request.url)

    def show(document, link="", scheme="light", width=1280):
        path = tmp_path / f"{len(pages)}.html"
        path.write_text(page(document), encoding="utf-8")
        pages.append(path.as_uri())
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 720})
        tab.goto(pages[-1] + link)
        return tab

    show.problems = problems
    events = {"console": on_console, "pageerror": on_error, "request": on_request}
    for event, listener in events.items():
        tab.on(event, listener)
    yield show
    for event, listener in events.items():
        tab.remove_listener(event, listener)
    assert not problems


def layer(name, count=1000, **changes):
    """A layer of a document; its values fall from 2 to 0.02."""
    rank = sorted({*np.linspace(0, count - 1, 50).astype(int).tolist()})
    values = [2 * 100 ** (-r / max(count - 1, 1)) for r in rank]
    heat = {"top": [[1.0, 2.0], [3.0, 4.0]], "thinned": False}
    return {
        "name": name,
        "shape": [16, 16, 3, 3],
        "grid": [32, 32],
        "stride": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
        "padding": [[1, 1], [0, 2]],
        "boundary": "zeros",
        "transposed": False,
        "output_padding": [0, 0],
        "values_of": "torus",
        "count": count,
        "largest": 2.0,
        "upper_quartile": 0.8,
        "median": 0.2,
        "lower_quartile": 0.05,
        "smallest": 0.02,
        "rank": count,
        "stable_rank": 321.25,
        "effective_rank": 12345.6,
        "condition": 100.0,
        "above_one": 0.15,
        "count_above_one": round(0.15 * count),
        "norm_lower": 2.0004,
        "norm_upper": 2.0501,
        "norm_method": "embedding",
        "reshaped": 0.7,
        "seconds": 0.012,
        "curve": {"rank": rank, "values": values},
        "heat": heat,
    } | changes


def without_grid(name):
    known = ("name", "shape", "stride", "dilation", "groups", "padding", "boundary")
    known += ("transposed", "output_padding", "norm_lower", "norm_upper", "reshaped")
    full = layer(name)
    unknown = dict.fromkeys(full.keys() - set(known))
    return full | unknown | {"norm_method": "supremum", "seconds": 0.5}


def report(*layers, **changes):
    summary = {
        "layers": len(layers),
        "skipped": 0,
        "log10_product_lower": -3.2001 if layers else 0.0,
        "log10_product_upper": 3.4001 if layers else 0.0,
        "largest": [each["name"] for each in layers[:3]],
    }
    return {
        "title": "net.th",
        "version": "0.1.0",
        "notes": ["A torus is\na stand-in."],
        "summary": summary,
        "layers": list(layers),
        "skipped": [],
    } | changes


THREE = report(
    layer("conv2", norm_upper=9.5, condition=None, seconds=2.0),
    layer("conv10", count=500, norm_upper=10.5, condition=90.0, seconds=3.0),
    layer("fc", count=2, norm_upper=0.25, norm_lower=0.25, condition=1000.0),
)


def names(opened):
    return opened.locator("#rows tr:visible th").all_inner_texts()


def column(opened, title):
    return opened.locator("thead th").filter(has_text=title)


def traces(opened, plot):
    return opened.evaluate("id => document.getElementById(id).data", plot)


def marked(opened, *plots):
    """The curves that stand out, the same in all plots: by the names they carry."""
    found = []
    for plot in plots or ("values", "ratios", "shares"):
        data = traces(opened, plot)
        assert {t["opacity"] for t in data if t["line"]["width"] < 3} <= {0.25, 1}
        found.append([t["meta"] for t in data if t["line"]["width"] == 3])
        assert all(t["opacity"] == 1 for t in data if t["line"]["width"] == 3)
        assert any(t["opacity"] < 1 for t in data) == bool(found[-1])
    assert all(each == found[0] for each in found)
    return found[0]


def current(opened):
    return opened.locator("#rows tr[aria-current=true] th").all_inner_texts()


def wide(opened):
    return opened.evaluate("document.documentElement.scrollWidth - innerWidth") > 0


def test_the_table_shows_the_layers(show):
    opened = show(report(layer("conv"), without_grid("other"), title="a net"))
    assert opened.locator("thead th").all_inner_texts() == [
        *("#", "Layer", "Kernel", "Input", "Stride", "Norm", "Reshaped", "Smallest"),
        *("Condition", "Stable rank", "Effective rank", "Above 1", "Seconds"),
    ]
    first, second = opened.locator("#rows tr").all()
    # Certified ends are rounded outward: the upper one, 2.0501, not to 2.050.
    assert first.locator("th, td").all_inner_texts() == [
        *("1", "conv", "16×16×3×3", "32×32", "1×1", "2.000 – 2.051", "0.7000"),
        *("0.02000", "100", "321.3", "12,346", "15.0 %", "0.012"),
    ]
    assert second.locator("th, td").all_inner_texts() == [
        *("2", "other", "16×16×3×3", "any", "1×1", "2.000 – 2.051", "0.7000"),
        *("–", "–", "–", "–", "–", "0.50"),
    ]
    assert opened.title() == "a net – convspectra"
    assert opened.locator("#notes").inner_text() == "A torus is a stand-in."
    assert opened.locator("#product dd").inner_text() == "10−3.21 – 103.41"


def test_what_is_unknown_is_called_so(show):
    open_ = {"unknown": ["stride", "groups"], "stride": None, "groups": None}
    one = layer("conv", **open_, norm_lower=None, values_of="assumption")
    document = report(one)
    document["summary"]["log10_product_lower"] = None
    opened = show(document)
    cells = opened.locator("#rows tr td").all_inner_texts()
    assert cells[3:5] == ["unknown", "unknown – 2.051"]
    assert opened.locator("#product dd").inner_text() == "unknown – 103.41"
    assert "they assume stride 1" in opened.locator("#thinning").inner_text()
    opened.locator("#rows tr").click()
    assert "whatever is unknown" in opened.locator("#of").inner_text()
    facts = opened.locator("#facts").inner_text().replace("\n", " ").lower()
    assert "stride unknown" in facts
    assert "groups unknown" in facts


def test_intervals_are_rounded_outward(show):
    cases = [
        (1.19, 1.21, "1.190 – 1.210"),
        (1.18999, 1.21001, "1.189 – 1.211"),
        (9.9999, 9.9999, "9.999 – 10.00"),
        (0.00012345, 0.00012345, "0.0001234 – 0.0001235"),
        (0.0, 5e-324, "0 – 4.941e-324"),
        (123456.0, 123456.0, "1.234e+5 – 1.235e+5"),
        (None, 2.5, "unknown – 2.500"),
    ]
    ends = [{"norm_lower": lower, "norm_upper": upper} for lower, upper, _ in cases]
    opened = show(report(*(layer(f"{k}", **each) for k, each in enumerate(ends))))
    shown = opened.locator("#rows td:nth-child(6)").all_inner_texts()
    assert shown == [want for *_, want in cases]


def test_sorting_sorts(show):
    opened = show(THREE)
    for title, first, then in [
        ("Norm", ["conv10", "conv2", "fc"], ["fc", "conv2", "conv10"]),
        ("Layer", ["conv2", "conv10", "fc"], ["fc", "conv10", "conv2"]),
        ("Condition", ["fc", "conv10", "conv2"], ["conv10", "fc", "conv2"]),
        ("#", ["conv2", "conv10", "fc"], ["fc", "conv10", "conv2"]),
    ]:
        cell = column(opened, title)
        ways = ["ascending", "descending"]
        for want, way in zip((first, then), ways if title in "#Layer" else ways[::-1]):
            cell.get_by_role("button").click()
            assert names(opened) == want
            assert cell.get_attribute("aria-sort") == way
            assert opened.locator("[aria-sort]").count() == 1


def test_every_column_can_be_sorted(show):
    opened = show(THREE)
    cells = opened.locator("thead th").all()
    for cell in cells:
        cell.get_by_role("button").click()
        assert cell.get_attribute("aria-sort")
        assert sorted(names(opened)) == ["conv10", "conv2", "fc"]
    assert len(cells) == 13


def test_the_filter_filters(show):
    opened = show(report(layer("Conv2"), layer("conv10"), layer("fc")))
    box = opened.get_by_label("Filter by name")
    box.fill("cONV")
    assert names(opened) == ["Conv2", "conv10"]
    assert opened.locator("#matches").inner_text() == "2 of 3 layers"
    box.fill("nothing like it")
    assert names(opened) == []
    box.fill("")
    assert names(opened) == ["Conv2", "conv10", "fc"]


def visible(opened, plot="values"):
    return [trace.get("visible", True) for trace in traces(opened, plot)]


def test_the_filter_filters_the_curves_and_offers_the_stages(show):
    names = ["stem.weight", "a.conv1", "a.conv2", "b/0", "b/1"]
    opened = show(report(*map(layer, names)))
    offered = "options => options.map((option) => option.value)"
    assert opened.locator("#stages option").evaluate_all(offered) == ["a.", "b/"]
    box = opened.get_by_label("Filter by name")
    box.fill("a.")
    assert visible(opened) == [False, True, True, False, False]
    box.fill("")
    assert all(visible(opened, "shares"))


def lit(opened):
    """Which lines stand out of their plots, each by the color that it has."""
    return opened.locator(".hovering .lit path.js-line").evaluate_all(
        "lines => lines.map((line) => getComputedStyle(line).stroke)"
    )


def on_first_curve(opened):
    """Where a point of it is on the screen, after scrolling there."""
    return opened.evaluate("""() => {
        const plot = document.getElementById("ratios");
        plot.scrollIntoView();
        const { xaxis, yaxis } = plot._fullLayout;
        const { left, top } = plot.querySelector(".nsewdrag").getBoundingClientRect();
        const [{ x, y }] = plot.data;
        return [left + xaxis.d2p(x[40]), top + yaxis.d2p(y[40])];
    }""")


def test_a_line_stands_out_while_the_pointer_is_on_it_or_its_row(show):
    opened = show(THREE)
    assert lit(opened) == []
    opened.locator("#rows tr").nth(1).hover()
    colors = [trace["line"]["color"] for trace in traces(opened, "values")]
    assert {color.replace(" ", "") for color in lit(opened)} == {colors[1]}
    assert len(lit(opened)) == 3
    faded = opened.locator(".hovering .trace:not(.lit)").first
    assert float(faded.evaluate("e => getComputedStyle(e).opacity")) < 0.5
    opened.locator("h1").hover()
    assert lit(opened) == []
    opened.mouse.move(*on_first_curve(opened))
    opened.locator("#ratios .hovertext").wait_for()
    assert {color.replace(" ", "") for color in lit(opened)} == {colors[0]}


def test_a_hundred_layers_fit_and_small_ones_are_seen_beside_large_ones(show):
    large = {"shape": [1024, 1024, 3, 3], "grid": [224, 224], "count": 51_380_224}
    name = "model.backbone.stages.{}.blocks.{}.conv{}.weight"
    some = [layer(name.format(i, i % 7, i % 3), **large) for i in range(99)]
    some.append(layer("small", 64))
    opened = show(report(*some), width=1280)
    assert opened.locator(".box").evaluate("box => box.scrollWidth <= box.clientWidth")
    axes = "id => document.getElementById(id).layout.xaxis.type"
    assert [opened.evaluate(axes, id) for id in ("values", "ratios")] == ["log"] * 2


def test_a_row_chooses_its_layer_everywhere(show):
    opened = show(THREE)
    assert (current(opened), marked(opened)) == ([], [])
    assert not opened.locator("#panel, #chosen").locator("visible=true").count()
    opened.locator("#rows tr").nth(1).click()
    assert current(opened) == marked(opened) == ["conv10"]
    assert opened.locator("#panel h2").inner_text() == "conv10"
    assert (
        opened.locator("#of")
        .inner_text()
        .startswith("These are values of the circular surrogate")
    )
    assert opened.url.endswith("#layer=conv10")
    opened.get_by_role("button", name="Back to all").click()
    assert (current(opened), marked(opened)) == ([], [])
    assert not opened.locator("#panel").is_visible()


def test_a_curve_chooses_its_layer(show):
    opened = show(THREE)
    where = on_first_curve(opened)
    opened.mouse.move(*where)
    opened.locator("#ratios .hovertext").wait_for()
    opened.mouse.click(*where)
    assert current(opened) == marked(opened) == ["conv2"]


def test_what_is_chosen_comes_into_sight(show):
    opened = show(report(*(layer(f"conv{k}", count=3) for k in range(60))))
    opened.evaluate("shares.emit('plotly_click', { points: [{ curveNumber: 59 }] })")
    box, row = (opened.locator(x).bounding_box() for x in (".box", "[aria-current]"))
    assert box["y"] < row["y"] < row["y"] + row["height"] <= box["y"] + box["height"]
    assert opened.evaluate("scrollY") == 0  # the table alone has scrolled
    opened.get_by_role("button", name="See it").click()
    assert 0 <= opened.locator("#panel").bounding_box()["y"] < 100


def test_the_largest_norms_are_links(show):
    opened = show(THREE)
    opened.locator("#largest button").nth(2).click()
    assert current(opened) == ["fc"]


def test_the_keyboard_is_enough(show):
    opened = show(THREE)
    press = opened.keyboard.press
    press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    assert opened.locator(":focus").bounding_box()["y"] >= 0
    press("Enter")
    for _ in range(16):  # the filter, the box, thirteen columns, the first row
        press("Tab")
    focused = opened.locator("tr:focus th")
    assert focused.inner_text() == "conv2"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == (
        "solid"
    )
    for key, want in [
        *(("ArrowDown", "conv10"), ("ArrowDown", "fc"), ("ArrowDown", "fc")),
        *(
            ("Home", "conv2"),
            ("ArrowUp", "conv2"),
            ("End", "fc"),
            ("ArrowUp", "conv10"),
        ),
    ]:
        press(key)
        assert focused.inner_text() == want
    assert current(opened) == []
    press("Enter")
    assert current(opened) == marked(opened) == ["conv10"]
    press("ArrowUp")
    press("Space")
    assert current(opened) == marked(opened) == ["conv2"]
    assert opened.locator("#said").inner_text() == "Chosen: conv2"
    assert focused.inner_text() == "conv2"  # and stays where it was
    press("Escape")
    assert (current(opened), marked(opened)) == ([], [])


def test_a_link_chooses_a_layer(show):
    opened = show(report(layer("a"), layer("b/ü=%")), link="#layer=b%2F%C3%BC%3D%25")
    assert current(opened) == ["b/ü=%"]
    assert opened.locator("#panel").bounding_box()["y"] < 100
    opened.evaluate("location.hash = 'layer=a'")
    opened.locator("#rows tr[aria-current]", has_text="a").wait_for()
    for link in ("layer=nothing", "layer=%E0%A4%A", "layers", "layer", ""):
        opened.evaluate(
            """link => {
            location.hash = link;
            dispatchEvent(new HashChangeEvent("hashchange"));
        }""",
            link,
        )
        assert current(opened) == ["a"]


def test_curves_are_values_and_ratios_over_their_rank(show):
    opened = show(THREE)
    for k, given in enumerate(THREE["layers"]):
        rank, values = (np.array(given["curve"][key]) for key in ("rank", "values"))
        for plot, x, y in [
            ("values", rank + 1, values),
            ("ratios", rank + 1, values / values[0]),
            ("shares", rank / (given["count"] - 1), values / values[0]),
        ]:
            trace = traces(opened, plot)[k]
            np.testing.assert_allclose(trace["x"], x)
            np.testing.assert_allclose(trace["y"], y)
            assert (
                opened.evaluate(
                    "id => document.getElementById(id).layout.yaxis.type", plot
                )
                == "log"
            )
    colors = [trace["line"]["color"] for trace in traces(opened, "values")]
    assert len(set(colors)) == 3
    text = opened.locator("#thinning").inner_text()
    assert "at most 50 values of a layer" in text
    assert "For 3 of 3 layers they are values of the circular surrogate" in text
    opened.evaluate("Plotly.Fx.hover('shares', [{ curveNumber: 1, pointNumber: 49 }])")
    label = opened.locator("#shares .hoverlayer").text_content()
    assert label == "conv10rank 500 of 500value 0.02000"


def test_the_panel_shows_one_layer(show, rng):
    top = rng.random((4, 5))
    heat = {"top": top.tolist(), "thinned": True}
    own = layer("own", values_of="layer", heat=heat, stride=[2, 2])
    opened = show(report(own), link="#layer=own")
    assert "surrogate" not in opened.locator("#thinning").inner_text()
    assert opened.locator("#of").inner_text() == "These are the layer’s own values."
    values, norm = traces(opened, "spectrum")
    assert values["y"] == own["curve"]["values"]
    assert norm["y"] == [own["norm_upper"]] * 2
    assert norm["line"]["dash"] == "dash"
    (found,) = traces(opened, "heat")
    np.testing.assert_array_equal(found["z"], np.fft.fftshift(top))
    for axis, size in (("y", 4), ("x", 5)):
        want = np.fft.fftshift(np.fft.fftfreq(size))
        np.testing.assert_allclose(found[axis], want, atol=1e-15)
    assert "cycles per output site" in opened.locator("#heat").text_content()
    assert opened.locator("#folded").inner_text() == (
        "4 input frequencies fold onto each, thinned to 4×5 blocks"
    )
    assert opened.locator("#drawn").inner_text() == ", 50 of 1,000 drawn"
    facts = opened.locator("#facts").inner_text().replace("\n", " ").lower()
    for fact in ("norm 2.000 – 2.051", "padding 1+1 × 0+2", "norm method embedding"):
        assert fact in facts
    assert "median 0.2000" in facts
    assert "transposed no" in facts


@pytest.mark.parametrize("transposed", [False, True])
def test_frequencies_on_one_axis_are_a_line(show, transposed):
    heat = {"top": [[1.0, 2.0, 3.0]], "thinned": False}
    line = layer("line", stride=[2], heat=heat, transposed=transposed)
    opened = show(report(line), link="#layer=line")
    (found,) = traces(opened, "heat")
    assert found["y"] == [3.0, 1.0, 2.0]
    np.testing.assert_allclose(found["x"], [-1 / 3, 0, 1 / 3])
    side, fold = ("input", "output") if transposed else ("output", "input")
    assert f"cycles per {side} site" in opened.locator("#heat").text_content()
    assert f"2 {fold} frequencies fold" in opened.locator("#folded").inner_text()


def test_hostile_names_are_text(show):
    layers = [layer(name) for name in HOSTILE]
    checkpoints = {name: {"lower": [1.0], "upper": [2.0]} for name in HOSTILE}
    document = report(
        *layers,
        title=HOSTILE[0],
        notes=HOSTILE,
        version=HOSTILE[1],
        skipped=[{"name": name, "reason": name} for name in HOSTILE],
        trajectories={"checkpoints": [HOSTILE[1]], "layers": checkpoints},
    )
    opened = show(document, width=375)
    codes = {RLO: "\\u{202e}", LS: "\\u{2028}", "\0": "\\u{0}", HALF: "\\u{d800}"}
    seen = [name.translate(str.maketrans(codes)) for name in HOSTILE]
    assert opened.locator("#rows th").all_text_contents() == seen
    assert opened.locator("#reasons dt").all_text_contents() == seen
    assert opened.locator("#notes li").all_text_contents() == seen
    assert opened.locator("h1").text_content() == HOSTILE[0]
    assert opened.title() == f"{HOSTILE[0]} – convspectra"
    assert opened.locator("script").count() == 3
    assert opened.locator("img").count() == 0
    for k, name in enumerate(seen):
        opened.locator("#rows tr").nth(k).evaluate("row => row.click()")
        assert opened.locator("#panel h2").text_content() == name
        for plot in ("values", "norms"):
            hover = (
                f"Plotly.Fx.hover('{plot}', [{{ curveNumber: {k}, pointNumber: 0 }}])"
            )
            opened.evaluate(hover)
            label = opened.locator(f"#{plot} .hoverlayer").text_content()
            short = name if len(name) <= 60 else name[:30] + "…" + name[-30:]
            assert label.startswith(short), label
        link = opened.url.partition("#")[2]
        assert opened.evaluate("decodeURIComponent", link) == f"layer={name}"
        assert len(marked(opened, "norms")) == 1
        assert not wide(opened)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(show, scheme):
    other = "light" if scheme == "dark" else "dark"
    paper = {"light": "rgb(250, 250, 249)", "dark": "rgb(21, 23, 27)"}
    ink = {"light": "rgb(31, 35, 40)", "dark": "rgb(228, 230, 234)"}
    opened = show(THREE, scheme=scheme)
    button = opened.get_by_role("button", name="Dark")

    def colors(now):
        opened.locator(f"html[style*='color-scheme: {now}']").wait_for()
        pressed = str(now == "dark").lower()
        assert button.get_attribute("aria-pressed") == pressed
        found = opened.evaluate("""() => [
            getComputedStyle(document.body).backgroundColor,
            document.getElementById("values").layout.font.color,
        ]""")
        assert found == [paper[now], ink[now]]
        return [trace["line"]["color"] for trace in traces(opened, "values")]

    first = colors(scheme)
    opened.emulate_media(color_scheme=other)
    assert colors(other) != first
    button.click()
    assert colors(scheme) == first


def test_a_phone_scrolls_the_table_and_not_the_page(show):
    long = layer("model.encoder.blocks.11.attention.projection.convolution.weight")
    document = report(long, layer("b"), trajectories=TRAJECTORIES)
    for link in ("", f"#layer={long['name']}"):
        opened = show(document, link=link, width=375)
        assert not wide(opened)
        box = opened.locator(".box")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        box.evaluate("box => box.scrollTo(300, 0)")  # the names stay in sight
        left = opened.locator("#rows th").first.bounding_box()["x"]
        assert left == pytest.approx(box.bounding_box()["x"], abs=2)


def test_an_empty_report(show):
    skipped = [{"name": "fc.bias", "reason": "has fewer than 3 axes"}]
    opened = show(report(skipped=skipped, trajectories=None))
    assert opened.get_by_text("There are no layers in this report.").is_visible()
    for part in ("curves", "layers", "panel", "trajectories", "product", "largest"):
        assert not opened.locator(f"#{part}").is_visible()
    opened.get_by_text("1 array skipped").click()
    assert opened.locator("#reasons").inner_text().split("\n") == [
        "fc.bias",
        "has fewer than 3 axes",
    ]


def test_a_layer_without_a_grid(show):
    opened = show(report(without_grid("any")))
    assert not opened.locator("#curves").is_visible()
    opened.locator("#rows tr").click()
    assert (
        "upper bound of the norm holds for every size."
        in opened.locator("#of").inner_text()
    )
    assert not opened.locator("#panel figure").first.is_visible()
    assert not opened.locator("#panel figure").last.is_visible()
    assert "supremum" in opened.locator("#facts").inner_text()
    # Among others: it has no curve, so that none steps back.
    opened = show(report(layer("a"), without_grid("any")), link="#layer=any")
    assert (current(opened), marked(opened)) == (["any"], [])


def test_a_layer_of_zeros_and_one_of_a_single_value(show):
    zeros = {"curve": {"rank": [0, 9], "values": [0.0, 0.0]}, "count": 10}
    zeros |= {"largest": 0.0, "norm_lower": 0.0, "norm_upper": 0.0}
    single = layer("single", count=1, heat={"top": [[2.0]], "thinned": False})
    document = report(layer("zeros", **zeros), single)
    document["summary"]["log10_product_lower"] = None  # the logarithm of zero
    opened = show(document)
    assert opened.locator("#product dd").inner_text() == "0 – 103.41"
    for name in ("zeros", "single"):
        opened.locator("#rows tr", has_text=name).click()
        assert opened.locator("#panel h2").inner_text() == name
    assert traces(opened, "ratios")[0]["y"] == [None, None]
    assert traces(opened, "shares")[1]["x"] == [0]


TRAJECTORIES = {
    "checkpoints": ["2024-01-01", "100"],
    "layers": {
        "b": {"lower": [1.0, None], "upper": [2.0, None]},
        "gone": {"lower": [1.0, 2.0], "upper": [1.5, 2.5]},
    },
}


def test_trajectories(show):
    opened = show(report(layer("a"), layer("b"), trajectories=TRAJECTORIES))
    first, second = traces(opened, "norms")
    assert (first["x"], first["y"]) == ([0, 1], [2.0, None])
    assert (second["meta"], second["y"]) == ("gone", [1.5, 2.5])
    assert first["customdata"][0] == ["2024-01-01", "1.000 – 2.000"]
    ticks = opened.locator("#norms .xtick").all_text_contents()
    assert ticks == ["2024-01-01", "100"]  # as they are: neither dates nor numbers
    assert marked(opened, "norms") == []
    opened.locator("#rows tr").last.click()
    assert marked(opened, "norms") == marked(opened) == ["b"]
    opened.locator("#rows tr").first.click()
    assert marked(opened, "norms") == []
    emit = "k => norms.emit('plotly_click', { points: [{ curveNumber: k }] })"
    for curve, want in ((1, "a"), (0, "b")):  # "gone" is no layer of the report
        opened.evaluate(emit, curve)
        assert current(opened) == [want]


def test_what_gets_into_the_page_can_neither_run_nor_ask(show):
    opened = show(report())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        refused = opened.evaluate(
            """async (address) => {
                const found = [];
                addEventListener("securitypolicyviolation", (event) =>
                    found.push(event.effectiveDirective));
                const script = document.createElement("script");
                script.textContent = "document.title = 'run'";
                const image = document.createElement("img");
                image.setAttribute("onerror", "document.title = 'run'");
                image.src = address;
                document.body.append(script, image);
                const signal = AbortSignal.timeout(1000);
                await fetch(address, { signal }).catch(() => {});
                await new Promise((resolve) => setTimeout(resolve, 100));
                return [...found, document.title];
            }""",
            f"http://127.0.0.1:{server.getsockname()[1]}/",
        )
        with pytest.raises(BlockingIOError):  # nobody has come
            server.accept()
    assert sorted(set(refused)) == [
        *("connect-src", "img-src", "net.th – convspectra"),
        *("script-src-attr", "script-src-elem"),
    ]
    show.problems.clear()


def test_a_large_page_is_not_too_large(rng):
    def large(k):
        curve = {"rank": list(range(512)), "values": rng.random(512).tolist()}
        heat = {"top": rng.random((56, 56)).tolist(), "thinned": False}
        return layer(f"layer{k}", curve=curve, heat=heat)

    text = page(report(*map(large, range(53))))
    assert len(text.encode()) < 10**7


def test_the_parts_are_found_where_the_package_is():
    parts = {part.name for part in files("convspectra._report.page").iterdir()}
    assert {"page.html", "page.css", "data.js", "plots.js", "page.js"} <= parts


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_must_be_finite(number):
    with pytest.raises(ValueError, match=r"must be finite, .* Put None in its place"):
        page(report(layer("a", condition=number)))


def test_plotly_is_needed(monkeypatch):
    for name in [*sys.modules]:
        if name.partition(".")[0] == "plotly":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])  # as if not installed
    with pytest.raises(ModuleNotFoundError, match=r"install 'convspectra\[report\]'"):
        page(report())


@pytest.mark.parametrize("text", ["a </SCRIPT> b", "a <!-- b"])
def test_a_script_must_not_end_itself(monkeypatch, text):
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: text)
    with pytest.raises(ValueError, match="must not contain what ends it"):
        page(report())
