/* The report, how its numbers and names become text, and what a reader has chosen. */

const $ = (id) => document.getElementById(id);

/** Show what has no shape (controls, marks of direction) as codes; lines may end. */
function plain(text) {
  const code = (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`;
  return text.replace(/(?!\n)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, code);
}

/** For plotly, which reads its texts as markup; long ones would cover the plot. */
function label(text, longest = 60) {
  const signs = [...text];
  const half = longest / 2;
  const short = signs.length > longest
    ? `${signs.slice(0, half).join("")}…${signs.slice(-half).join("")}` : text;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1e9 && (size >= 1e3 || Number.isInteger(value))) {
    return Math.round(value).toLocaleString("en");
  }
  return size < 1e-3 ? value.toExponential(digits - 1) : value.toPrecision(digits);
}

/** Four digits of a certified end: rounded outward, it still holds. */
function end(value, upward) {
  if (!value) return number(value);
  const near = value.toPrecision(4);
  if (upward ? Number(near) >= value : Number(near) <= value) return near;
  const [digits, power] = value.toExponential(100).split("e");
  const cut = Number(digits.slice(0, 5).replace(".", ""));
  return Number(`${cut + upward}e${power - 3}`).toPrecision(4);
}

const known = (value, show) => (value === null ? "unknown" : show(value));
const interval = (lower, upper) =>
  `${known(lower, (value) => end(value, false))} – ${end(upper, true)}`;
const times = (sizes) => sizes.join("×");
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

const report = JSON.parse($("data").textContent, (_, value) =>
  typeof value === "string" ? plain(value) : value);
const { layers, trajectories } = report;
const indexOf = (name) => layers.findIndex((layer) => layer.name === plain(name));

const system = matchMedia("(prefers-color-scheme: dark)");
let dark = system.matches;
let chosen = null; // index of a layer; null for all
