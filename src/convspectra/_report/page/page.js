/* The page: its table, the one layer that is chosen, and what a reader can do. */

const curves = [...layers.keys()].filter((i) => layers[i].curve);
const followed = Object.keys(trajectories?.layers ?? {}).map(indexOf);

// The plots with a line for each of several layers.
const LINES = { values: curves, ratios: curves, shares: curves, norms: followed };

/* For each column its title, what it sorts by, and what it shows. */
const COLUMNS = [
  ["#", (l, i) => i + 1],
  ["Layer", (l) => l.name, (l) => l.name],
  ["Kernel", (l) => product(l.shape), (l) => times(l.shape)],
  ["Input", (l) => l.grid && product(l.grid), (l) => (l.grid ? times(l.grid) : "any")],
  ["Stride", (l) => l.stride && product(l.stride), (l) => known(l.stride, times)],
  ["Norm", (l) => l.norm_upper, (l) => interval(l.norm_lower, l.norm_upper)],
  ["Reshaped", (l) => l.reshaped],
  ["Smallest", (l) => l.smallest],
  ["Condition", (l) => l.condition],
  ["Stable rank", (l) => l.stable_rank],
  ["Effective rank", (l) => l.effective_rank],
  ["Above 1", (l) => l.above_one, (l) => percent(l.above_one)],
  ["Seconds", (l) => l.seconds, (l) => number(l.seconds, 2)],
].map(([title, key, text = (l, i) => number(key(l, i))]) => ({ title, key, text }));

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const rows = layers.map((layer, index) => {
  const [first, , ...others] = COLUMNS.map(({ text }) =>
    element("td", {}, text(layer, index)));
  first.append(element("span", { class: "swatch" }));
  const name = element("span", { class: "name", title: layer.name }, layer.name);
  const head = element("th", { scope: "row" }, name);
  const row = element("tr", {}, first, head, ...others);
  row.addEventListener("click", () => choose(index));
  row.addEventListener("mouseenter", () => light(index));
  row.addEventListener("mouseleave", () => light(null));
  return row;
});

const shown = () => [...$("rows").children].filter((row) => !row.hidden);

/** Tab reaches one row: this one if it is shown, else the first that is. */
function reachable(row) {
  const one = row && !row.hidden ? row : shown()[0];
  for (const each of rows) each.tabIndex = each === one ? 0 : -1;
}

function sort({ title, key }, cell) {
  const ways = ["#", "Layer"].includes(title)
    ? ["ascending", "descending"] : ["descending", "ascending"];
  const way = ways[cell.ariaSort === ways[0] ? 1 : 0];
  for (const each of $("head").children) each.ariaSort = null;
  cell.ariaSort = way;
  const { compare } = new Intl.Collator("en", { numeric: true });
  const keys = layers.map(key);
  const order = [...keys.keys()].sort((i, j) => {
    const [a, b] = [keys[i], keys[j]];
    if (a === null || b === null) return (a === null) - (b === null); // unknown: last
    const sign = way === "ascending" ? 1 : -1;
    return sign * (typeof a === "string" ? compare(a, b) : a - b);
  });
  for (const i of order) $("rows").append(rows[i]);
  reachable(rows[chosen]);
}

function filter() {
  const wanted = $("filter").value.trim().toLowerCase();
  rows.forEach((row, i) => {
    row.hidden = !layers[i].name.toLowerCase().includes(wanted);
  });
  const all = plural(rows.length, "layer");
  $("matches").value = wanted ? `${shown().length} of ${all}` : "";
  reachable(rows[chosen]);
}

/** The beginnings of names that several layers share, where names have parts. */
function stages() {
  const first = layers.map(({ name }) => name.match(/^.+?[./]/)?.[0]).filter(Boolean);
  const several = [...new Set(first)].filter((one) =>
    first.filter((other) => other === one).length > 1);
  return several.length > 1 ? several : [];
}

function onKey(event) {
  const all = shown();
  const at = all.indexOf(event.target);
  const goals = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
  const to = goals[event.key];
  const enters = event.key === "Enter" || event.key === " ";
  if (at < 0 || (to === undefined && !enters)) return;
  event.preventDefault();
  if (enters) choose(rows.indexOf(all[at]));
  if (!all[to]) return;
  reachable(all[to]);
  all[to].focus();
}

/** Everything that is known of a layer and has no other place in its panel. */
function facts({ name, curve: _, heat, norm_lower, norm_upper, unknown, ...others }) {
  const text = (value) => {
    if (typeof value === "number") return number(value);
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (!Array.isArray(value)) return value ?? "–";
    return value.map((each) => [each].flat().join("+")).join(" × "); // padding: pairs
  };
  const open = Object.fromEntries((unknown ?? []).map((key) => [key, "unknown"]));
  const all = { norm: interval(norm_lower, norm_upper), ...others, ...open };
  return Object.entries(all).map(([key, value]) => element("div", {},
    element("dt", {}, key.replaceAll("_", " ")), element("dd", {}, text(value))));
}

function showLayer() {
  const layer = layers[chosen];
  $("panel").hidden = $("chosen").hidden = !layer;
  if (!layer) return;
  const { name, count, curve: line, heat, stride, transposed } = layer;
  $("panel-title").textContent = $("chosen-name").textContent = name;
  const whose = layer.values_of ?? (layer.grid ? "nothing" : "any");
  for (const each of $("of").children) each.hidden = each.dataset.of !== whose;
  $("facts").replaceChildren(...facts(layer));
  $("spectrum").parentElement.hidden = !line;
  $("heat").parentElement.hidden = !heat;
  if (line) {
    const drawn = line.rank.length;
    $("drawn").textContent = drawn < count
      ? `, ${number(drawn)} of ${number(count)} drawn` : "";
    drawSpectrum(layer);
  }
  if (heat) {
    const folded = product(stride ?? []);
    const side = transposed ? "output" : "input";
    const sizes = [heat.top.length, heat.top[0].length].filter((size) => size > 1);
    $("folded").textContent = [
      folded > 1 ? `${folded} ${side} frequencies fold onto each` : "",
      heat.thinned ? `thinned to ${times(sizes)} blocks` : "",
    ].filter(Boolean).join(", ");
    drawHeat(layer);
  }
}

function show() {
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  $("theme").ariaPressed = dark;
  const last = layers.length - 1;
  const stops = Array.from({ length: 16 }, (_, k) => color((k * last) / 15));
  $("gradient").style.background = `linear-gradient(to right, ${stops})`;
  rows.forEach((row, i) => {
    row.querySelector(".swatch").style.background = color(i);
    row.ariaCurrent = i === chosen ? "true" : null;
  });
  drawLines();
  showLayer();
}

function drawLines() {
  if (curves.length) drawCurves(curves);
  if (trajectories) drawTrajectories(followed);
}

/** Scroll the table, and nothing else, until the row is in it. */
function reveal(row) {
  const box = row.closest(".box");
  const below = row.offsetTop - box.scrollTop;
  if (below < 2 * row.offsetHeight || below > box.clientHeight - row.offsetHeight) {
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }
}

/** Choose a layer by its index; null goes back to all. */
function choose(index) {
  chosen = index;
  show();
  reachable(rows[chosen]);
  if (rows[chosen]) reveal(rows[chosen]);
  const name = layers[chosen]?.name;
  $("said").textContent = name === undefined ? "All layers" : `Chosen: ${name}`;
  const link = name === undefined ? "#" : `#layer=${encodeURIComponent(name)}`;
  history.replaceState(null, "", link);
}

function chooseLinked() {
  const [key, name] = location.hash.split(/=(.*)/s);
  if (key !== "#layer") return;
  try {
    const index = indexOf(decodeURIComponent(name));
    if (index < 0) return;
    choose(index);
    $("panel").scrollIntoView();
  } catch (error) {
    if (!(error instanceof URIError)) throw error; // a link that nothing here made
  }
}

function fillSummary({ log10_product_lower: low, log10_product_upper: high, largest }) {
  const power = (log, rounded) =>
    (rounded(100 * log) / 100).toFixed(2).replace("-", "−");
  $("count").textContent = number(layers.length);
  $("product").hidden = high === null || !layers.length;
  $("low").textContent = power(low, Math.floor);
  $("high").textContent = power(high, Math.ceil);
  if (low === null) {
    const open = layers.some(({ norm_lower: lower }) => lower === null);
    $("from").textContent = open ? "unknown" : "0";
  }
  for (const name of largest.filter((each) => indexOf(each) >= 0)) {
    const button = element("button", { type: "button", title: name }, name);
    button.addEventListener("click", () => choose(indexOf(name)));
    $("largest").append(button);
  }
}

function fillCurves() {
  const most = curves.reduce((a, i) => Math.max(a, layers[i].curve.rank.length), 0);
  const torus = curves.filter((i) => layers[i].values_of === "torus").length;
  const assumed = curves.filter((i) => layers[i].values_of === "assumption").length;
  $("assumed").parentElement.hidden = !assumed;
  $("assumed").textContent = `${assumed} of ${plural(curves.length, "layer")}`;
  $("most").textContent = number(most);
  $("torus").parentElement.hidden = !torus;
  $("torus").textContent = `${torus} of ${plural(curves.length, "layer")}`;
}

function fill() {
  document.title = `${report.title} – convspectra`;
  $("title").textContent = report.title;
  $("version").textContent = report.version;
  $("notes").append(...report.notes.map((note) => element("li", {}, note)));
  fillSummary(report.summary);
  fillCurves();
  for (const column of COLUMNS) {
    const button = element("button", { type: "button" }, column.title);
    const cell = element("th", { scope: "col" }, button);
    button.addEventListener("click", () => sort(column, cell));
    $("head").append(cell);
  }
  for (const row of rows) $("rows").append(row);
  $("stages").append(...stages().map((value) => element("option", { value })));
  $("skipped-title").textContent = `${plural(report.skipped.length, "array")} skipped`;
  for (const { name, reason } of report.skipped) {
    const term = element("dt", { class: "name" }, name);
    $("reasons").append(term, element("dd", {}, reason));
  }
  $("layers").hidden = !layers.length;
  $("no-layers").hidden = layers.length > 0;
  $("curves").hidden = !curves.length;
  $("trajectories").hidden = !trajectories;
  $("skipped").hidden = !report.skipped.length;
  filter();
}

function listen() {
  const turn = (to) => { dark = to; show(); };
  $("theme").addEventListener("click", () => turn(!dark));
  system.addEventListener("change", () => turn(system.matches));
  $("filter").addEventListener("input", () => { filter(); drawLines(); });
  $("rows").addEventListener("keydown", onKey);
  $("see").addEventListener("click", () => $("panel").scrollIntoView());
  $("back").addEventListener("click", () => choose(null));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen !== null) choose(null);
  });
  addEventListener("hashchange", chooseLinked);
  for (const [id, indices] of Object.entries(LINES)) {
    $(id).on?.("plotly_hover", ({ points: [point] }) =>
      light(indices[point.curveNumber]));
    $(id).on?.("plotly_unhover", () => light(null));
    $(id).on?.("plotly_click", ({ points: [point] }) => {
      const index = indices[point.curveNumber];
      if (index >= 0) choose(index);
    });
  }
}

fill();
show();
listen();
chooseLinked();
