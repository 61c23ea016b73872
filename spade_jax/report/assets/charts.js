// Charts as SVG: curves with bands, parts of a whole, and shares as shades. Texts go in as text.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const DASHES = ["", "6 4", "2 4", "10 3 2 3"];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((each) => each !== null && each !== undefined));
  return node;
}

function shape(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

const colour = (k) => `var(--c${k % COLOURS})`;

function number(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit === "share") return `${Number((100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0))}%`;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace(".0e", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

// Round steps between two bounds, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const found = [];
  for (let k = first; k <= last; k += every) found.push(10 ** k);
  return found;
}

// Where the values of a chart lie: their bounds and the marks of the axis.
function vertical(chart, values) {
  if (chart.log) {
    const positive = values.filter((each) => each > 0);
    if (positive.length) {
      const marks = decades(Math.min(...positive), Math.max(...positive));
      if (marks.length < 2) marks.push(marks[0] * 10);
      return { low: marks[0], high: Math.max(marks[marks.length - 1], Math.max(...positive)), marks, log: true };
    }
  }
  let [low, high] = chart.range || [Math.min(...values), Math.max(...values)];
  if (!chart.range) {
    // A band that is much wider than its curve is cut off rather than flattening the others.
    const drawn = chart.kind === "stack" ? values : chart.series.flatMap((s) => s.y);
    const halves = (chart.series ?? []).flatMap((s) => s.half ?? []).filter((half) => half !== null).sort((a, b) => a - b);
    const usual = halves[Math.floor(halves.length / 2)] ?? 0;
    const least = Math.min(...drawn), most = Math.max(...drawn), span = Math.max(most - least, 1.5 * usual);
    if (span) [low, high] = [Math.max(low, least - span), Math.min(high, most + span)];
    if (chart.zero || chart.kind === "stack") [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    high += room;
    if (low < 0 || !chart.zero) low -= chart.kind === "stack" ? 0 : room;
  }
  return { low, high, marks: ticks(low, high, 4), log: false };
}

// The frame of a chart: axes, and functions from values to places.
function frame(svg, chart, x, y) {
  const width = svg.clientWidth || 430, height = svg.clientHeight || 220;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const left = 46, right = 10, top = 8, bottom = 24;
  const first = x[0], last = x[x.length - 1];
  const across = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const scaled = y.log ? (v) => Math.log(Math.max(v, y.low) / y.low) / Math.log(y.high / y.low) : (v) => (v - y.low) / (y.high - y.low || 1);
  const up = (value) => height - bottom - Math.min(Math.max(scaled(value), 0), 1) * (height - top - bottom);
  for (const mark of y.marks) {
    shape("line", { class: mark === 0 && y.low < 0 ? "axis" : "grid", x1: left, x2: width - right, y1: up(mark), y2: up(mark) }, svg);
    shape("text", { x: left - 8, y: up(mark) + 4, "text-anchor": "end" }, svg).textContent = y.labels ? "" : number(mark, chart.unit);
  }
  const marks = ticks(first, last, Math.max(2, Math.min(8, width / 75))).filter(Number.isInteger);
  for (const mark of marks.length ? marks : [first]) {
    shape("text", { x: across(mark), y: height - 6, "text-anchor": "middle" }, svg).textContent = mark;
  }
  return { width, height, left, right, top, bottom, across, up };
}

const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function drawLines(svg, chart) {
  const values = chart.series.flatMap((s) =>
    s.y.flatMap((v, k) => (s.half && s.half[k] !== null && !chart.log ? [v - s.half[k], v + s.half[k]] : [v])));
  const x = [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const place = frame(svg, chart, x, vertical(chart, values));
  for (const s of chart.series) {
    if (!s.half) continue;
    const known = s.x.map((_, k) => k).filter((k) => s.half[k] !== null);
    const upper = known.map((k) => [place.across(s.x[k]), place.up(s.y[k] + s.half[k])]);
    const lower = known.map((k) => [place.across(s.x[k]), place.up(s.y[k] - s.half[k])]).reverse();
    if (known.length) shape("path", { class: "band", d: `${path([...upper, ...lower])}Z` }, svg).style.fill = colour(s.colour);
  }
  for (const s of chart.series) {
    const points = s.x.map((k, i) => [place.across(k), place.up(s.y[i])]);
    const line = shape("path", { class: "curve", d: path(points), "stroke-dasharray": DASHES[(s.dash || 0) % 4] }, svg);
    line.style.stroke = colour(s.colour);
    if (points.length <= 30) {
      for (const [cx, cy] of points) shape("circle", { cx, cy, r: 2.4 }, svg).style.fill = colour(s.colour);
    }
  }
  return { place, x, rows: (k) => chart.series.map((s) => {
    const i = s.x.indexOf(k);
    const half = s.half && i >= 0 ? s.half[i] : null;
    return i < 0 ? null : [s.label, number(s.y[i], chart.unit) + (half === null ? "" : ` ± ${number(half, chart.unit)}`)];
  }).filter(Boolean) };
}

function drawStack(svg, chart) {
  const sums = chart.x.map((_, k) => chart.parts.reduce((sum, part) => sum + part.y[k], 0));
  const place = frame(svg, chart, chart.x, vertical(chart, sums));
  let below = chart.x.map(() => 0);
  chart.parts.forEach((part, j) => {
    const above = below.map((value, k) => value + part.y[k]);
    const upper = above.map((value, k) => [place.across(chart.x[k]), place.up(value)]);
    const lower = below.map((value, k) => [place.across(chart.x[k]), place.up(value)]).reverse();
    const node = shape("path", { d: `${path([...upper, ...lower])}Z`, opacity: j < COLOURS ? 0.82 : 0.45 }, svg);
    node.style.fill = colour(j);
    below = above;
  });
  return { place, x: chart.x, rows: (k) => chart.parts
    .map((part) => [part.label, part.y[chart.x.indexOf(k)]])
    .filter(([, value]) => value > 0)
    .map(([label, value]) => [label, number(value, chart.unit)]) };
}

function drawHeat(svg, chart) {
  const n = chart.parts.length;
  const place = frame(svg, chart, chart.x, { low: 0, high: n, marks: [], log: false });
  const most = Math.max(...chart.parts.flatMap((part) => part.y)) || 1;
  const wide = (place.width - place.left - place.right) / chart.x.length;
  chart.parts.forEach((part, j) => {
    const y = place.up(j + 1), high = place.up(j) - y;
    part.y.forEach((value, k) => {
      const cell = { x: place.left + k * wide, y, width: wide + 0.4, height: high - 1, opacity: value / most };
      if (value > 0) shape("rect", cell, svg).style.fill = "var(--accent)";
    });
    if (j % 2 === 0) shape("text", { x: place.left - 8, y: y + high / 2 + 4, "text-anchor": "end" }, svg).textContent = `${10 * j}%`;
  });
  const across = (k) => place.left + (chart.x.indexOf(k) + 0.5) * wide;
  return { place: { ...place, across }, x: chart.x, rows: (k) => chart.parts
    .map((part) => [part.label, number(part.y[chart.x.indexOf(k)], "share")]).reverse() };
}

const DRAW = { lines: drawLines, stack: drawStack, heat: drawHeat };

function legend(chart) {
  const entries = chart.kind === "lines" ? chart.series : chart.kind === "stack" ? chart.parts : [];
  if (entries.length < 2) return null;
  const list = make("ul", { class: "legend" });
  entries.forEach((entry, j) => {
    const key = make("i");
    key.style.borderColor = colour(entry.colour ?? j);
    if (entry.dash) key.style.borderTopStyle = "dashed";
    list.append(make("li", {}, key, entry.label));
  });
  return list;
}

// A figure that redraws itself when its width changes and says what lies under the pointer.
function figure(chart) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${chart.title}: ${chart.note}`);
  const tip = make("div", { class: "tip", hidden: "" });
  const caption = make("figcaption", {}, make("h3", { text: chart.title }), make("p", { text: chart.note }));
  const node = make("figure", { class: "chart", id: `chart-${chart.id}` }, caption, svg, legend(chart), tip);
  let drawn = null, width = 0;
  new ResizeObserver(() => {
    if (!svg.clientWidth || svg.clientWidth === width) return;
    width = svg.clientWidth;
    drawn = DRAW[chart.kind](svg, chart);
  }).observe(svg);
  const hide = () => {
    tip.hidden = true;
    svg.querySelector(".cursor")?.remove();
  };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    if (!drawn) return;
    hide();
    const { place, x, rows } = drawn, at = event.clientX - svg.getBoundingClientRect().left;
    const k = x.reduce((best, each) => (Math.abs(place.across(each) - at) < Math.abs(place.across(best) - at) ? each : best));
    shape("line", { class: "cursor", x1: place.across(k), x2: place.across(k), y1: place.top, y2: place.height - place.bottom }, svg);
    tip.replaceChildren(make("b", { text: `iteration ${k}` }));
    for (const [label, text] of rows(k).slice(0, 14)) tip.append(make("div", { text: `${label}  ${text}` }));
    tip.hidden = false;
    const room = node.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(room, svg.offsetLeft + place.across(k) + 12))}px`;
    tip.style.top = `${svg.offsetTop + 10}px`;
  });
  return node;
}
