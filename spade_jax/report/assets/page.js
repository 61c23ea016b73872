// The page: which part of it is shown, keys, and reading it anew while runs go on.

const ORDER = ["held-out", "benchmarks", "success", "regret", "win-rates", "verdicts", "diversity", "entropy", "length", "gap", "time"];
const views = [...document.querySelectorAll(".view")];

function route() {
  const hash = location.hash.slice(1) || "overview";
  const name = hash.startsWith("e/") ? "environments" : hash;
  const view = views.find((each) => each.id === name) ?? views[0];
  const turned = view.hidden;
  for (const each of views) each.hidden = each !== view;
  if (turned) scrollTo(0, 0);
  for (const each of document.querySelectorAll("nav a")) {
    if (each.hash === `#${view.id}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  if (hash.startsWith("e/")) show(decodeURI(hash.slice(2)));
  else close();
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (viewer.current) location.hash = "#environments";
    return;
  }
  if (typing) return;
  if (event.key === "/") {
    event.preventDefault();
    if (!location.hash.startsWith("#e")) location.hash = "#environments";
    setTimeout(() => query.focus());
  } else if (event.key === "j" || event.key === "k") {
    move(event.key === "j" ? 1 : -1);
  } else if (event.key === "t") {
    document.getElementById("tokens")?.click();
  }
}

function startCharts(index) {
  const group = document.getElementById("group");
  const place = (chart) => (ORDER.indexOf(chart.id) + ORDER.length) % ORDER.length;
  const shared = index.charts.map((chart) => [chart, figure(chart)]);
  const renew = () => {
    const own = (index.groups[Number(group.value)]?.charts ?? []).map((chart) => [chart, figure(chart)]);
    const all = [...shared, ...own].sort(([a], [b]) => place(a) - place(b));
    document.getElementById("charts").replaceChildren(...all.map(([, node]) => node));
  };
  options(group, index.groups.map(({ label }, k) => [k, label]));
  document.getElementById("group-choice").hidden = index.groups.length < 2;
  group.addEventListener("change", renew);
  renew();
  const metric = document.getElementById("metric"), names = Object.keys(index.metrics);
  options(metric, names.map((name) => [name, name]));
  const draw = () => {
    if (!metric.value) return;
    const several = index.groups.length > 1;
    const series = index.metrics[metric.value].map((each, k) => ({ ...each, colour: several ? each.colour : k }));
    const note = index.meanings[metric.value] ?? "";
    document.getElementById("any").replaceChildren(figure({ id: "any", kind: "lines", title: metric.value, note, series }));
  };
  metric.addEventListener("change", draw);
  metric.value = names.includes("learn/loss") ? "learn/loss" : names[0] ?? "";
  draw();
}

// While runs go on the file is written again and again; the page follows unless someone is typing.
function follow(seconds) {
  const clock = document.getElementById("clock");
  clock.textContent = `, refreshed every ${seconds} s`;
  setInterval(() => {
    if (!document.hidden && !/^(INPUT|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
      try {
        sessionStorage.setItem("spade scroll", String(scrollY));
      } catch { /* then it starts at the top */ }
      location.reload();
    }
  }, 1000 * seconds);
}

async function start() {
  const index = await unpack(document.getElementById("index"));
  startCharts(index);
  startViewer(index);
  addEventListener("hashchange", route);
  addEventListener("keydown", keys);
  route();
  if (index.every) follow(index.every);
  try {
    scrollTo(0, Number(sessionStorage.getItem("spade scroll") ?? 0));
    sessionStorage.removeItem("spade scroll");
  } catch { /* it starts at the top */ }
  document.documentElement.dataset.ready = "true";
}

start();
