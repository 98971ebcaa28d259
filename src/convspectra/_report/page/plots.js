/* The plots: each is drawn anew from the state, and plotly finds what has changed. */

const FLOOR = 1e-4; // of the largest value: plots begin there if some are smaller
const MANY = 40; // lines, which are then drawn thinner
const PLASMA = [
  [13, 8, 135], [84, 2, 163], [139, 10, 165], [185, 50, 137],
  [219, 92, 104], [244, 136, 73], [254, 188, 43], [240, 249, 33],
];

/** Plasma from first layer to last, without the end that the background swallows. */
function color(index) {
  const share = layers.length > 1 ? Math.max(index, 0) / (layers.length - 1) : 0.5;
  const at = (dark ? 0.4 + 0.6 * share : 0.8 * share) * (PLASMA.length - 1);
  const below = Math.min(Math.floor(at), PLASMA.length - 2);
  const mixed = PLASMA[below].map((part, i) =>
    Math.round(part + (at - below) * (PLASMA[below + 1][i] - part)));
  return `rgb(${mixed.join(",")})`;
}

function draw(id, traces, x, y, uirevision = id) {
  const { color: ink, borderTopColor: line } = getComputedStyle($(id).parentElement);
  const axis = ({ title, ...more }) => ({
    title: { text: title, standoff: 8 }, gridcolor: line, zeroline: false,
    automargin: true, ...more,
  });
  const clear = "rgba(0,0,0,0)";
  const touched = matchMedia("(pointer: coarse)").matches;
  Plotly.react($(id), traces, {
    xaxis: axis(x), yaxis: axis(y), uirevision,
    autosize: true, hovermode: "closest", showlegend: false,
    margin: { l: 8, r: 12, t: 28, b: 8 },
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    modebar: { color: ink, activecolor: ink, bgcolor: clear },
    paper_bgcolor: clear, plot_bgcolor: clear,
    dragmode: touched ? false : "zoom", // a finger that drags scrolls the page
  }, {
    responsive: true, displaylogo: false, displayModeBar: touched ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d"],
  });
}

function logarithmic(title, values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  if (!logs.length) return { title };
  const top = logs.reduce((a, b) => Math.max(a, b));
  const low = Math.max(logs.reduce((a, b) => Math.min(a, b)), top + Math.log10(FLOOR));
  const room = 0.05 * (top - low) + 0.02;
  return {
    title, type: "log", range: [low - room, top + room],
    tickformat: "~g", dtick: top - low > 1.5 ? 1 : "D2",
  };
}

/** How a line looks among others: beside a chosen one they step back. */
function look(index, others) {
  const on = index === chosen;
  return {
    line: { color: color(index), width: on ? 3 : others.length > MANY ? 1 : 1.5 },
    opacity: on || !others.includes(chosen) ? 1 : 0.25,
    visible: !rows[index]?.hidden, // by the filter
    zorder: on ? 1 : 0,
  };
}

/** Let one line stand out of all plots for as long as the pointer is on it. */
function light(index) {
  for (const [id, indices] of Object.entries(LINES)) {
    const { _fullData: lines } = $(id);
    const line = lines?.[indices.indexOf(index)];
    const drawn = line && $(id).querySelector(`.trace${line.uid}`);
    $(id).querySelector(".lit")?.classList.remove("lit");
    drawn?.classList.add("lit");
    $(id).classList.toggle("hovering", Boolean(drawn));
  }
}

function curve(index, x, y, more) {
  const { name, count, curve: { rank, values } } = layers[index];
  return {
    x: rank.map((r) => x(r, count)),
    y: values.map((value) => y(value, values[0])),
    customdata: rank.map((r, i) => [r + 1, values[i]]),
    meta: label(name),
    mode: rank.length > 2 ? "lines" : "lines+markers",
    hovertemplate: `%{meta}<br>rank %{customdata[0]:,} of ${number(count)}`
      + "<br>value %{customdata[1]:.4g}<extra></extra>",
    ...more,
  };
}

const RANK = { title: "rank", tickformat: "~s" };
// Layers have a thousand values or millions: on a linear axis the small ones vanish.
const LOG_RANK = { ...RANK, type: "log", dtick: 1, minor: { ticks: "" } };
const place = (r) => r + 1;
const share = (r, count) => (count > 1 ? r / (count - 1) : 0);
const itself = (value) => value;
const ratio = (value, top) => (top > 0 ? value / top : null);

function drawCurves(indices) {
  for (const [id, x, axis, y, title] of [
    ["values", place, LOG_RANK, itself, "singular value"],
    ["ratios", place, LOG_RANK, ratio, "ratio to the largest"],
    ["shares", share, { title: "rank, from 0 to 1" }, ratio, "ratio to the largest"],
  ]) {
    const traces = indices.map((i) => curve(i, x, y, look(i, indices)));
    const all = traces.flatMap((trace) => trace.y);
    draw(id, traces, axis, logarithmic(title, all));
  }
}

function drawTrajectories(indices) {
  const { checkpoints } = trajectories;
  const entries = Object.entries(trajectories.layers);
  const traces = entries.map(([name, { lower, upper }], i) => ({
    x: [...upper.keys()],
    y: upper,
    customdata: upper.map((top, k) => [label(checkpoints[k]), interval(lower[k], top)]),
    meta: label(plain(name)),
    mode: "lines+markers",
    hovertemplate: "%{meta}<br>%{customdata[0]}<br>norm %{customdata[1]}"
      + "<extra></extra>",
    ...look(indices[i], indices),
  }));
  const step = Math.ceil(checkpoints.length / 10);
  const tickvals = [...checkpoints.keys()].filter((k) => k % step === 0);
  const ticktext = tickvals.map((k) => label(checkpoints[k], 20));
  draw("norms", traces, { title: "checkpoint", tickvals, ticktext },
    logarithmic("norm", traces.flatMap((trace) => trace.y)));
}

function drawSpectrum({ count, norm_upper: top }) {
  const line = { color: color(chosen), width: 2.5 };
  const traces = [curve(chosen, place, itself, { line })];
  if (top !== null) {
    traces.push({
      x: [1, Math.max(count, 2)], y: [top, top], mode: "lines",
      line: { color: getComputedStyle($("of")).color, dash: "dash", width: 1.5 },
      hovertemplate: `certified upper bound: ${end(top, true)}<extra></extra>`,
    });
  }
  const y = logarithmic("singular value", traces.flatMap((trace) => trace.y));
  draw("spectrum", traces, RANK, y, chosen);
}

/** The order that puts frequency zero in the middle, and each one's cycles per site. */
function centered(count) {
  const positive = Math.ceil(count / 2);
  const order = Array.from({ length: count }, (_, i) => (i + positive) % count);
  return { order, cycles: order.map((k) => (k < positive ? k : k - count) / count) };
}

function drawHeat({ heat: { top }, stride, transposed }) {
  // The frequencies are those of the coarser side: all that fold onto one stand there.
  const side = product(stride ?? []) === 1 ? "" : transposed ? "input " : "output ";
  const unit = `cycles per ${side}site`;
  const across = centered(top[0].length);
  const down = centered(top.length);
  const z = down.order.map((i) => across.order.map((j) => top[i][j]));
  if (top.length === 1) {
    const line = {
      x: across.cycles, y: z[0], line: { color: color(chosen) },
      hovertemplate: `%{x:.3f} ${unit}<br>largest value %{y:.4g}<extra></extra>`,
    };
    draw("heat", [line], { title: unit }, { title: "largest value" }, chosen);
    return;
  }
  const map = {
    type: "heatmap", colorscale: "Viridis", x: across.cycles, y: down.cycles, z,
    colorbar: { thickness: 12, outlinewidth: 0, len: 0.7 },
    hovertemplate: "first axis %{y:.3f}, second axis %{x:.3f}"
      + "<br>largest value %{z:.4g}<extra></extra>",
  };
  const axis = { constrain: "domain", dtick: 0.25 };
  draw("heat", [map], { title: `second axis, ${unit}`, ...axis },
    { title: "first axis", scaleanchor: "x", ...axis }, chosen);
}
