// The viewer of environments: a list that can be searched and filtered, and one in full beside it.
// Whatever an environment, a hint or a model wrote goes into the page as text alone.

const PAGE = 150; // rows shown at once

async function unpack(node) {
  const bytes = Uint8Array.from(atob(node.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Details by run and environment, unpacked by the chunk when one of it is wanted.
const chunks = [...document.querySelectorAll("script.chunk")].map((node) => ({
  node,
  run: Number(node.dataset.run),
  names: new Set(JSON.parse(node.dataset.names)),
  content: null,
}));

function opened(chunk) {
  chunk.content ??= unpack(chunk.node);
  return chunk.content;
}

async function detailOf(row) {
  const chunk = chunks.find((each) => each.run === row.run && each.names.has(row.id));
  return chunk ? (await opened(chunk))[row.id] : null;
}

const viewer = { rows: [], byKey: new Map(), shown: [], limit: PAGE, current: null, tokens: false, runs: [], texts: null };

const keyOf = (row) => `${row.run}/${row.id}`;
const form = document.getElementById("filters");
const query = document.getElementById("query");
const list = document.getElementById("list");
const found = document.getElementById("found");
const further = document.getElementById("further");
const panel = document.getElementById("detail");

// -- the list ---------------------------------------------------------------------------------

const ORDERS = {
  new: () => 0,
  regret: (a, b) => rank(b.regret) - rank(a.regret),
  win: (a, b) => rank(b.win) - rank(a.win),
  hard: (a, b) => rank(a.win, Infinity) - rank(b.win, Infinity),
  reward: (a, b) => rank(b.reward) - rank(a.reward),
};
const rank = (value, unknown = -Infinity) => value ?? unknown;

function bounds() {
  const value = (name) => (form.elements[name].value === "" ? null : Number(form.elements[name].value));
  return [["iteration", 1], ["win", 100], ["regret", 1]].map(([field, scale]) => ({
    field, scale, from: value(`${field}-from`), to: value(`${field}-to`),
  })).filter((each) => each.from !== null || each.to !== null);
}

function matches(row, limits) {
  if (form.elements.run.value !== "" && row.run !== Number(form.elements.run.value)) return false;
  if (form.elements.skill.value && row.skill !== form.elements.skill.value) return false;
  const verdict = form.elements.verdict.value;
  if (verdict && row.verdict !== verdict && !(verdict === "rejected" && isRejected(row))) return false;
  return limits.every(({ field, scale, from, to }) => row[field] !== null
    && (from === null || row[field] * scale >= from) && (to === null || row[field] * scale <= to));
}

const isRejected = (row) => row.verdict !== "accepted" && row.verdict !== "given";

// All words of the search are in the row, or else in the environment's texts.
function says(row, words) {
  const short = `${row.name} ${row.id} ${row.skill} ${row.verdict} ${row.document ?? ""}`.toLowerCase();
  const text = viewer.texts?.get(keyOf(row)) ?? "";
  return words.every((word) => short.includes(word) || text.includes(word));
}

async function readTexts() {
  const texts = new Map();
  for (const chunk of chunks) {
    for (const [id, detail] of Object.entries(await opened(chunk))) {
      const plays = detail.transcripts.flatMap((e) => [e.hint, ...e.turns.flatMap(([seen, reply]) => [seen, reply])]);
      const text = [detail.code, detail.hint, detail.excerpt, detail.message, ...plays].filter(Boolean).join("\n");
      texts.set(`${chunk.run}/${id}`, text.toLowerCase());
    }
  }
  viewer.texts = texts;
  filter();
}

let asked = 0;
function filter() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !viewer.texts && !asked++) readTexts();
  const limits = bounds();
  viewer.shown = viewer.rows.filter((row) => matches(row, limits) && says(row, words));
  const order = form.elements.order.value;
  if (order === "old") viewer.shown.reverse();
  else viewer.shown.sort(ORDERS[order]);
  viewer.limit = PAGE;
  found.textContent = `${viewer.shown.length.toLocaleString("en")} of ${viewer.rows.length.toLocaleString("en")} environments`
    + (words.length && !viewer.texts ? ", looking into programs and plays …" : "");
  fill();
  remember();
}

function fill() {
  list.replaceChildren(...viewer.shown.slice(0, viewer.limit).map((row) => make("li", {}, entry(row))));
  further.hidden = viewer.shown.length <= viewer.limit;
  mark();
}

function badge(row) {
  const kind = row.verdict === "accepted" ? "good" : isRejected(row) ? "bad" : "";
  return make("span", { class: `badge ${kind}`, text: row.verdict });
}

function entry(row) {
  const numbers = row.win === null ? "" : `won ${number(row.win, "share")}${row.regret === null ? "" : `, regret ${signed(row.regret)}`}`;
  return make("a", { class: "row", href: `#e/${encodeURI(keyOf(row))}`, "data-key": keyOf(row) },
    make("b", { text: row.name }), badge(row),
    make("small", { text: `${row.iteration} · ${row.skill}` }), make("small", { class: "right", text: numbers }));
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

function mark() {
  for (const node of list.querySelectorAll("[aria-current]")) node.removeAttribute("aria-current");
  const node = viewer.current && list.querySelector(`[data-key="${CSS.escape(keyOf(viewer.current))}"]`);
  if (node) node.setAttribute("aria-current", "true");
  return node;
}

// The next or an earlier environment of the list.
function move(by) {
  const at = viewer.shown.indexOf(viewer.current);
  const row = viewer.shown[Math.min(Math.max(at + by, 0), viewer.shown.length - 1)];
  if (!row) return;
  if (viewer.shown.indexOf(row) >= viewer.limit) {
    viewer.limit += PAGE;
    fill();
  }
  location.hash = `#e/${encodeURI(keyOf(row))}`;
}

// -- one environment --------------------------------------------------------------------------

function fact(name, value, note) {
  const text = make("dd", { text: value });
  if (note) text.append(" ", make("small", { text: note }));
  return make("div", {}, make("dt", { text: name }), text);
}

function facts(row, detail) {
  const node = make("dl", { class: "facts" });
  const add = (name, value, note) => value !== null && value !== undefined && node.append(fact(name, value, note));
  add("win rate", row.win === null ? (isRejected(row) ? "not played" : "unknown") : number(row.win, "share"),
    row.hinted === null ? "" : `${number(row.hinted, "share")} with the hint`);
  if (row.regret !== null) add("regret", signed(row.regret), `${row.stderr === null ? "" : `± ${(1.96 * row.stderr).toFixed(2)}, `}${row.pairs} pairs`);
  if (row.reward !== null) add("designer's reward", number(row.reward));
  if (detail?.resemblance !== undefined) add("most alike", number(detail.resemblance, "share"), detail.resembles || "");
  const measures = detail?.measures;
  if (measures) {
    add("won by its solution", number(measures.solution, "share"));
    add("by chance", number(Math.max(measures.null, measures.constant, measures.random), "share"));
  }
  if (detail?.repairs) add("repairs", detail.repairs, detail.first ? `first ${detail.first}` : "");
  if (detail?.judge) add("judge", detail.judge);
  if (detail?.stop === "length") add("reply", "cut off");
  return node;
}

function section(title, ...content) {
  return make("section", {}, make("h3", { text: title }), ...content);
}

function link(run, id) {
  const row = viewer.byKey.get(`${run}/${id}`);
  return row ? make("a", { href: `#e/${encodeURI(`${run}/${id}`)}`, text: `${row.name} ${id}` }) : make("span", { text: id });
}

function links(run, ids) {
  return make("ul", { class: "links" }, ...ids.map((id) => make("li", {}, link(run, id))));
}

// Those whose prompt showed this environment as a good example, and theirs, to a depth.
function descendants(row, depth) {
  const children = viewer.children.get(keyOf(row)) ?? [];
  if (!children.length || !depth) return null;
  return make("ul", { class: "lineage" }, ...children.slice(0, 12).map((child) =>
    make("li", {}, link(child.run, child.id), descendants(child, depth - 1))),
    children.length > 12 ? make("li", { class: "quiet", text: `and ${children.length - 12} more` }) : null);
}

function ancestors(row, seen = new Set()) {
  const own = row.parents.filter((id) => !seen.has(id));
  own.forEach((id) => seen.add(id));
  if (!own.length || seen.size > 40) return null;
  return make("ul", { class: "lineage" }, ...own.map((id) => {
    const parent = viewer.byKey.get(`${row.run}/${id}`);
    return make("li", {}, link(row.run, id), parent ? ancestors(parent, seen) : null);
  }));
}

function returns(detail) {
  const dots = (values) => make("td", {}, ...values.map((value) => make("i", {
    class: value === null ? "broken" : value > 0.5 ? "won" : "",
    title: value === null ? "broken" : number(value),
  })));
  const lines = detail.plays.map(([iteration, plain, hinted]) => make("tr", {},
    make("th", { class: "quiet", text: `iteration ${iteration}` }), dots(plain), dots(hinted)));
  return make("div", { class: "scroll" }, make("table", { class: "dots" },
    make("thead", {}, make("tr", {}, make("th"), make("th", { text: "plain" }), make("th", { text: "with the hint" }))),
    make("tbody", {}, ...lines)));
}

const ENDS = { terminated: "ended by the environment", turns: "out of turns", tokens: "out of tokens", failed: "broken" };

// The action, unless the reply is nothing else, and what it earned.
function earned(reply, action, reward) {
  if (action === null) return "no action found";
  return (action.trim() === reply.trim() ? "" : `action ${JSON.stringify(action)}, `) + `reward ${number(reward)}`;
}

function told(episode) {
  return episode.turns.flatMap(([seen, reply, action, reward]) => [
    make("p", { class: "said world" }, make("b", { text: "environment" }), seen),
    make("p", { class: "said agent" }, make("b", { text: "agent" }), reply),
    make("p", { class: "earned", text: earned(reply, action, reward) }),
  ]);
}

function marked(episode) {
  return episode.rows.map((row) => make("pre", { class: "tokens" }, ...row.map(([trained, n, text]) =>
    trained ? make("mark", { text, title: `${n} trained tokens` }) : text)));
}

function arm(episode) {
  const node = make("div", { class: "arm" });
  const facts = [`return ${episode.return === null ? "none" : number(episode.return)}`, ENDS[episode.end],
    `${episode.turns.length} turn${episode.turns.length === 1 ? "" : "s"}`, `${episode.tokens} tokens`];
  facts.push(episode.advantage === null ? "not trained" : `advantage ${signed(episode.advantage)}`);
  node.append(make("header", {}, make("span", { class: `badge ${episode.arm === "plain" ? "" : "good"}`, text: episode.arm }),
    make("span", { class: "quiet", text: facts.join(" · ") })));
  if (episode.hint) node.append(make("p", { class: "said hint" }, make("b", { text: episode.leaks ? "hint, which holds the answer" : "hint" }), episode.hint));
  if (episode.failure) node.append(make("p", { class: "message", text: `${episode.failure.kind} in ${episode.failure.phase}: ${episode.failure.message}` }));
  node.append(...(viewer.tokens && episode.rows ? marked(episode) : told(episode)));
  return node;
}

function pairs(detail) {
  const groups = new Map();
  for (const episode of detail.transcripts) {
    const key = `${episode.iteration}/${episode.play}`;
    groups.set(key, [...(groups.get(key) ?? []), episode]);
  }
  return [...groups.values()].map((episodes, k) => {
    const [first] = episodes;
    const results = episodes.map((e) => `${e.arm} ${e.return === null ? "broken" : number(e.return)}`).join(", ");
    const node = make("details", { class: "pair" }, make("summary", {}, `Iteration ${first.iteration}, play ${first.play}`,
      make("span", { class: "quiet", text: results })));
    const show = () => {
      if (node.open && !node.querySelector(".arms")) node.append(make("div", { class: "arms" }, ...episodes.map(arm)));
    };
    node.addEventListener("toggle", show);
    if (k === 0) {
      node.open = true;
      show();
    }
    return node;
  });
}

function playsOf(detail) {
  const toggle = make("button", { type: "button", id: "tokens", "aria-pressed": String(viewer.tokens), text: "Mark trained tokens",
    onclick: () => {
      viewer.tokens = !viewer.tokens;
      toggle.setAttribute("aria-pressed", String(viewer.tokens));
      const open = [...node.querySelectorAll("details")].map((each) => each.open);
      const renewed = pairs(detail);
      renewed.forEach((each, k) => { each.open = open[k]; });
      node.replaceChildren(...renewed);
    } });
  const node = make("div", { class: "pairs" }, ...pairs(detail));
  const can = detail.transcripts.some((each) => each.rows);
  const missing = detail.of - detail.transcripts.length;
  return make("section", {}, make("div", { class: "section-head" }, make("h3", { text: "Plays" }), can ? toggle : null),
    detail.plays.length ? returns(detail) : null,
    detail.transcripts.length ? node : make("p", { class: "quiet", text: "No transcript of it was kept." }),
    missing > 0 ? make("p", { class: "quiet", text: `${missing} more transcripts are in the run's folder.` }) : null);
}

function lineage(row) {
  const up = ancestors(row), down = descendants(row, 4);
  if (!up && !down) return null;
  return section("Lineage", up && make("p", { class: "quiet", text: "Shown to its designer as good examples, and to theirs:" }), up,
    down && make("p", { class: "quiet", text: "Shown as a good example to the designers of:" }), down);
}

async function show(key) {
  const row = viewer.byKey.get(key);
  if (!row) return;
  viewer.current = row;
  mark()?.scrollIntoView({ block: "nearest" });
  const detail = await detailOf(row);
  if (viewer.current !== row) return;
  const where = viewer.runs.length > 1 ? `${viewer.runs[row.run]} · ` : "";
  const parts = [
    make("a", { class: "back", href: "#environments", text: "← All environments" }),
    make("div", { class: "detail-head" }, make("h2", { text: row.name }), badge(row),
      make("span", { class: "quiet", text: `${where}${row.id} · ${row.skill} · ${row.kind.replace("_", " ")}, iteration ${row.iteration}` })),
    facts(row, detail),
  ];
  if (detail?.message) parts.push(make("p", { class: "message", text: detail.message }));
  if (detail) parts.push(...sections(row, detail));
  else parts.push(make("p", { class: "quiet", text: "Its program and plays were left out to keep this file small; they are in the run's folder." }));
  panel.replaceChildren(...parts.filter(Boolean));
  panel.dataset.key = key;
  if (narrow.matches && !document.body.classList.contains("open-detail")) left = scrollY;
  document.querySelector(".viewer").classList.add("open");
  document.body.classList.add("open-detail");
  if (narrow.matches) {
    scrollTo(0, 0);
    panel.focus({ preventScroll: true });
  } else if (panel.getBoundingClientRect().top < 0) {
    panel.scrollIntoView();
  }
}

function sections(row, detail) {
  const parts = [section(row.name === "no program" ? "Reply" : "Program", highlighted(detail.code || ""))];
  if (detail.hint) parts.push(section("Hint", make("p", { class: "prose", text: detail.hint })));
  if (row.win !== null || detail.transcripts.length) parts.push(playsOf(detail));
  if (row.document) parts.push(section("Document", make("p", { class: "quiet", text: row.document }),
    detail.excerpt ? make("p", { class: "prose", text: detail.excerpt }) : null));
  const seeds = [["Good examples", row.parents], ["Too easy or too hard ones", detail.negatives ?? []]].filter(([, ids]) => ids.length);
  if (seeds.length) parts.push(section("Memory seeds", ...seeds.flatMap(([title, ids]) => [make("p", { class: "quiet", text: title }), links(row.run, ids)])));
  parts.push(lineage(row));
  return parts;
}

// On a narrow screen one environment takes the place of the list, which is found again as it was.
const narrow = matchMedia("(max-width: 820px)");
let left = 0;

function close() {
  const was = document.body.classList.contains("open-detail");
  viewer.current = null;
  document.querySelector(".viewer").classList.remove("open");
  document.body.classList.remove("open-detail");
  mark();
  if (was && narrow.matches) scrollTo(0, left);
}

// -- start ------------------------------------------------------------------------------------

function options(select, values) {
  select.append(...values.map(([value, text]) => make("option", { value, text })));
}

function startViewer(index) {
  viewer.runs = index.runs;
  viewer.rows = index.environments.flatMap((rows, run) => rows.map((row) => ({ ...row, run })));
  viewer.byKey = new Map(viewer.rows.map((row) => [keyOf(row), row]));
  viewer.children = new Map();
  for (const row of [...viewer.rows].reverse()) {
    for (const id of row.parents) {
      const key = `${row.run}/${id}`;
      viewer.children.set(key, [...(viewer.children.get(key) ?? []), row]);
    }
  }
  const counted = (field) => {
    const counts = new Map();
    for (const row of viewer.rows) counts.set(row[field], (counts.get(row[field]) ?? 0) + 1);
    return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([value, n]) => [value, `${value} (${n})`]);
  };
  options(form.elements.skill, counted("skill"));
  const verdicts = counted("verdict"), rejected = viewer.rows.filter(isRejected).length;
  options(form.elements.verdict, rejected ? [["rejected", `rejected (${rejected})`], ...verdicts] : verdicts);
  options(form.elements.run, [["", "all"], ...index.runs.map((name, run) => [run, name])]);
  document.getElementById("run-choice").hidden = index.runs.length < 2;
  restore();
  let wait = 0;
  const later = () => {
    clearTimeout(wait);
    wait = setTimeout(filter, 120);
  };
  form.addEventListener("input", later);
  form.addEventListener("reset", later);
  form.addEventListener("submit", (event) => event.preventDefault());
  further.addEventListener("click", () => {
    viewer.limit += PAGE;
    fill();
  });
  filter();
}

// What was searched for lasts until the tab is closed, also through a reload.
function remember() {
  const values = [...new FormData(form)].concat([["query", query.value]]);
  try {
    sessionStorage.setItem(`spade ${document.title}`, JSON.stringify(values));
  } catch { /* some browsers keep nothing for files */ }
}

function restore() {
  try {
    for (const [name, value] of JSON.parse(sessionStorage.getItem(`spade ${document.title}`) ?? "[]")) {
      if (name === "query") query.value = value;
      else form.elements[name].value = value;
    }
  } catch { /* nothing was kept */ }
}
