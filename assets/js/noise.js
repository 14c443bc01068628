// Noise as sliders: a moved slider asks the server for all tokens at once; the sweep of the chosen
// place follows when the slider rests.

const FIGURES = ["strips", "sweep", "branches", "scaling"];
const SIDE = 96; // px of the names left of the first column, as in the figure
const COLUMN = 58; // px a place has at least
const REST = 180; // ms without a move before the sweep is asked for
const MOST_NOISE = 1 - 2 ** -24; // the last point of the grid that noise lies on
const SLOW = 500; // ms after which an answer is said to be on its way
const look = { pulled: null, key: null, head: null, noise: [], place: 0, drafter: "", budget: 24, answer: null, sweep: null, touched: false };
let asking = null;
let resting = null;

async function pullNoise() {
  const value = props.value;
  if (element.offsetParent === null || value === look.pulled) return; // a hidden tab waits
  look.pulled = value;
  if (!value?.noise) return;
  const first = look.key === null;
  const key = value.noise;
  look.key = key;
  element.classList.add("ds-loading");
  const [head] = await Promise.all([server.noise_head(key), plotlyThere]);
  if (look.key !== key) return;
  element.classList.remove("ds-loading");
  if (head.error) return complain(head.error);
  const asked = value.ask ?? {};
  const names = head.names.slice(1).map(([name]) => name);
  Object.assign(look, { head, answer: null, sweep: null, touched: !first || Boolean(asked.noise) });
  look.noise = asked.noise?.length === head.noise.length ? asked.noise : [...head.noise];
  look.place = Math.min(asked.place ?? 0, head.noise.length - 1);
  look.drafter = names.includes(asked.drafter) ? asked.drafter : names[0] ?? "";
  look.budget = asked.budget ?? 24;
  showHead();
  ask();
}

function showHead() {
  const { head } = look;
  find("label").textContent = head.label;
  find("title").textContent = head.title;
  const behind = make("span", { class: "ds-dim" }, `${TEXTS["noise.context"]} `);
  find("context").replaceChildren(behind, make("span", { class: "ds-context-text" }, head.context.replace(/\n/g, "↵")), make("span", { class: "ds-context-end" }, "▏"));
  find("context").title = head.prompt;
  find("none").textContent = head.none;
  find("none").hidden = !head.none;
  find("tally").replaceChildren(table(head.tally.heads, head.tally.rows));
  find("tally-said").textContent = head.tally_said;
  find("drafter").replaceChildren(...head.names.slice(1).map(([name, words]) => make("option", { value: name }, words)));
  find("drafter").value = look.drafter;
  find("budget").value = look.budget;
  const drafts = head.names.length > 1;
  element.classList.toggle("ds-without-drafters", !drafts);
  find("drafter-box").hidden = !drafts;
  element.querySelector('[data-figure="sweep"]').hidden = !drafts;
  element.querySelector('[data-figure="branches"]').hidden = !drafts;
  element.querySelector('[data-figure="scaling"]').hidden = !head.study;
  find("studied").textContent = head.study?.said ?? "";
  draw("scaling");
  find("ask").disabled = false;
  buildSliders();
}

function buildSliders() {
  const count = look.noise.length;
  const cells = look.noise.map((u, place) => {
    const slider = make("input", {
      type: "range", min: 0, max: 0.999, step: 0.001, "aria-orientation": "vertical",
      "aria-label": fill("noise.slider", { place: place + 1 }), "data-place": place, class: "ds-slider",
      oninput: () => move(place, Number(slider.value)), onfocus: () => choosePlace(place),
    });
    return make("div", { class: "ds-slider-cell" }, slider);
  });
  find("sliders").replaceChildren(...cells);
  for (const part of ["sliders", "values", "rows"]) find(part).style.setProperty("--ds-places", count);
  showNoise();
}

function showNoise() {
  element.querySelectorAll(".ds-slider").forEach((slider) => {
    const place = Number(slider.dataset.place);
    if (Math.abs(Number(slider.value) - look.noise[place]) >= 0.001) slider.value = look.noise[place];
    slider.setAttribute("aria-valuetext", look.noise[place].toFixed(3));
  });
  const values = look.noise.map((u, place) => make("span", { class: place === look.place ? "ds-value-chosen" : "" }, make("i", {}, `u${sub(place + 1)}`), ` ${u.toFixed(3)}`));
  find("values").replaceChildren(make("span", { class: "ds-dim" }, TEXTS["noise.row.noise"]), ...values);
}

function sub(number) {
  return [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");
}

function move(place, u) {
  look.noise = look.noise.with(place, u);
  look.place = place;
  look.touched = true;
  showNoise();
  ask();
}

function choosePlace(place) {
  if (place === look.place) return;
  look.place = place;
  showNoise();
  sweepSoon();
}

// One question at a time; what changes meanwhile is asked for after the answer has come.
async function ask() {
  if (asking) {
    asking.again = true;
    return;
  }
  asking = { again: true };
  const slow = setTimeout(() => { element.classList.add("ds-asking"); find("caption").textContent = TEXTS["noise.waiting"]; }, SLOW);
  try {
    while (asking.again) {
      asking.again = false;
      const key = look.key;
      const answer = await server.noise_look([key, question()]);
      if (key !== look.key) asking.again = true;
      else show(answer);
    }
  } finally {
    asking = null;
    clearTimeout(slow);
    element.classList.remove("ds-asking");
  }
  sweepSoon();
}

function question() {
  return { noise: look.noise, place: look.place, drafter: look.drafter, budget: look.budget };
}

function show(answer) {
  complain(answer.error ?? "");
  if (answer.error) find("caption").textContent = look.answer?.said ?? "";
  if (answer.error) return;
  look.answer = answer;
  find("caption").textContent = answer.said;
  showRows();
  rememberAddress();
  draw("strips");
  draw("branches");
}

function showRows() {
  const { head, answer } = look;
  const rows = head.names.map(([name, words]) => {
    const cells = answer.rows[name].map((cell) => make("span", { class: `ds-cell ds-cell-${cell.state}${cell.impossible ? " ds-cell-impossible" : ""}`, tabindex: "-1", "data-about": cell.about }, make("bdi", {}, cell.text)));
    return make("div", { class: "ds-noise-row", "data-row": name }, term(words, TEXTS[`noise.row.${name}.is`]), ...cells);
  });
  find("rows").replaceChildren(...rows);
}

function sweepSoon() {
  clearTimeout(resting);
  resting = setTimeout(pullSweep, REST);
}

let sweeping = false;
async function pullSweep() {
  if (!look.drafter || !look.key) return;
  if (sweeping) return sweepSoon();
  sweeping = true;
  const asked = question();
  const key = look.key;
  try {
    const answer = await server.noise_sweep([key, asked]);
    if (key !== look.key || asked.place !== look.place || asked.drafter !== look.drafter) return sweepSoon();
    if (answer.error) return complain(answer.error);
    look.sweep = answer;
    rememberAddress();
    draw("sweep");
  } finally {
    sweeping = false;
  }
}

function complain(sentence) {
  find("fault").textContent = sentence;
  find("fault").hidden = !sentence;
}

function figureOf(name) {
  if (name === "scaling") return look.head?.study?.figure;
  return name === "sweep" ? look.sweep?.figure : look.answer?.figures[name];
}

function draw(name) {
  const figure = figureOf(name);
  if (!figure || element.offsetParent === null) return;
  if (!find(`${name}-table`).hidden) find(`${name}-table`).replaceChildren(TABLES[name]());
  const frame = find(`${name}-frame`);
  if (frame.hidden) return;
  const layout = { ...figure.layout };
  if (name === "strips") {
    const width = Math.max(find("board").clientWidth, SIDE + COLUMN * look.noise.length);
    layout.width = width;
    find("board").style.setProperty("--ds-board", `${width}px`);
    find("sliders").style.setProperty("--ds-slider", `${layout.height - layout.margin.t - layout.margin.b + 12}px`);
    find("sliders").style.inset = `${layout.margin.t}px 0 ${layout.margin.b}px ${SIDE}px`;
  } else {
    layout.width = Math.max(frame.clientWidth - 2, name === "sweep" ? 560 : 260);
  }
  drawn[name] = { data: figure.data, layout };
  Plotly.react(figureArea(name), figure.data, layout, CONFIG).then((area) => bind(name, area));
}

function bind(name, area) {
  if (area.bound) return;
  area.bound = true;
  if (name === "sweep") area.on("plotly_click", (event) => move(look.place, Math.min(0.999, Math.max(0, Number(event.points[0].x)))));
  if (name === "strips") area.on("plotly_click", (event) => {
    const { customdata: facts, data, pointNumber: at } = event.points[0] ?? {};
    if (Array.isArray(facts)) move(facts[0] - 1, Math.min(data.base[at] + data.y[at] / 2, MOST_NOISE));
  });
}

function drawAll() {
  for (const name of FIGURES) draw(name);
}

function drawAgain() {
  look.noise = look.noise.map(() => Math.floor(Math.random() * 1000) / 1000);
  look.touched = true;
  showNoise();
  ask();
}

function reset() {
  look.noise = [...look.head.noise];
  showNoise();
  ask();
}

// The address bar holds the context and the noise; the first view leaves it as it was.
function rememberAddress() {
  if (!look.touched || !look.head?.link || element.offsetParent === null) return;
  setAddress(addressQuery());
}

function addressQuery() {
  const query = new URLSearchParams(look.head.link);
  if (look.noise.some((u, place) => u !== look.head.noise[place])) query.set("u", look.noise.map((u) => Number(u.toFixed(6))).join(","));
  query.set("place", look.place + 1);
  if (look.drafter) query.set("drafts", look.drafter);
  query.set("rows", look.budget);
  return query;
}

function copyLink() {
  return copyAddress(look.head?.link && addressQuery());
}

function save() {
  if (look.head) download(look.head.name, look.head.file, "application/json");
  else showTip(find("save"), TEXTS["noise.empty"]);
}

function onBudget() {
  const budget = Number(find("budget").value);
  if (!Number.isInteger(budget)) return;
  look.budget = budget;
  look.touched = true;
  ask();
}

placeControls();
for (const name of FIGURES) {
  buildFigure(name, `noise.${name}`, drawAll);
  TABLES[name] = () => {
    const fixed = { sweep: look.sweep?.table, scaling: look.head.study?.table };
    const { heads, rows } = fixed[name] ?? look.answer.tables[name];
    return table(heads, rows);
  };
}
find("is-drafter").append(term(TEXTS["noise.drafter"], TEXTS["noise.drafter.is"]));
find("is-budget").append(term(TEXTS["noise.budget"], TEXTS["noise.budget.is"]));
find("again").addEventListener("click", drawAgain);
find("reset").addEventListener("click", reset);
find("drafter").addEventListener("change", () => { look.drafter = find("drafter").value; look.touched = true; ask(); });
find("budget").addEventListener("change", onBudget);
find("save").addEventListener("click", save);
find("link").addEventListener("click", copyLink);
find("rows").addEventListener("pointerover", (event) => {
  const cell = event.target.closest("[data-about]");
  if (cell) showTip(cell, cell.dataset.about);
});
find("rows").addEventListener("pointerout", (event) => { if (event.target.closest("[data-about]")) hideTip(); });
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(() => { pullNoise(); drawAll(); }, 80); }).observe(element);
watch("value", pullNoise);
pullNoise();
