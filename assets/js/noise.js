// Noise as sliders: a moved slider asks the server for all tokens at once; the sweep of the chosen
// place follows when the slider rests.

const FIGURES = ["strips", "sweep", "branches", "scaling"];
const SIDE = 96; // px of the names left of the first column, as in the figure
const COLUMN = 58; // px a place has at least
const LEAST = { sweep: 560, branches: 260, scaling: 620 }; // px a figure is wide at least
const ROOM = 5; // characters of a token that a place has room for
const REST = 180; // ms without a move before the sweep is asked for
const MOST_NOISE = 1 - 2 ** -24; // the last point of the grid that noise lies on
const SLOW = 500; // ms after which an answer is said to be on its way
const look = { pulled: null, key: null, head: null, noise: [], place: 0, drafter: "", budget: 0, answer: null, sweep: null, touched: false, cell: [0, 0] };
const faults = {}; // by what was asked: they stay until it is answered well, or dismissed
let asking = null;
let resting = null;

async function pullNoise() {
  const value = props.value;
  if (element.offsetParent === null || value === look.pulled) return; // a hidden tab waits
  look.pulled = value;
  if (!value?.noise) return;
  const before = look.key;
  const key = value.noise;
  look.key = key;
  element.classList.add("ds-loading");
  const [head] = await Promise.all([served.noise_head(key), plotlyThere]);
  if (look.key !== key) return;
  element.classList.remove("ds-loading");
  complain("head", head.error);
  if (head.error) {
    Object.assign(look, { key: before, pulled: null }); // the same context can be chosen again
    return;
  }
  const asked = value.ask ?? {};
  const names = head.names.slice(1).map(([name]) => name);
  for (const about of ["look", "sweep", "budget", "file"]) complain(about);
  Object.assign(look, { head, answer: null, sweep: null, touched: before !== null || Boolean(asked.noise), cell: [0, 0] });
  look.noise = [...(asked.noise ?? head.noise)]; // the server has checked what is asked
  look.place = asked.place ?? 0;
  look.drafter = asked.drafter ?? names[0] ?? "";
  look.budget = asked.budget ?? head.budget[0];
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
  const [, least, most] = head.budget;
  Object.assign(find("budget"), { value: look.budget, min: least, max: most });
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
  try {
    while (asking.again) {
      asking.again = false;
      const key = look.key;
      const answer = await patiently(served.noise_look([key, question()]), "look");
      if (key !== look.key) asking.again = true;
      else show(answer);
    }
  } finally {
    asking = null;
  }
  sweepSoon();
}

// What the server answers. One that takes a while is told in the status line, where Stop ends it,
// and what will change is dimmed.
async function patiently(answer, about) {
  const slow = setTimeout(() => {
    trigger("asked");
    element.classList.add(`ds-asking-${about}`);
    if (about === "look") find("caption").textContent = TEXTS["noise.waiting"];
  }, SLOW);
  try {
    return await answer;
  } finally {
    clearTimeout(slow);
    element.classList.remove(`ds-asking-${about}`);
  }
}

function question() {
  return { noise: look.noise, place: look.place, drafter: look.drafter, budget: look.budget };
}

function show(answer) {
  complain("look", answer.error);
  if (answer.error) find("caption").textContent = look.answer?.said ?? "";
  if (answer.error) return;
  look.answer = answer;
  find("caption").textContent = answer.said;
  find("shared").textContent = answer.shared;
  find("shared").hidden = !answer.shared;
  showRows();
  rememberAddress();
  draw("strips");
  afterPaint(() => draw("branches")); // the tokens first
}

function afterPaint(work) {
  requestAnimationFrame(() => requestAnimationFrame(work));
}

function showRows() {
  const { head, answer } = look;
  const inside = find("rows").contains(document.activeElement) && document.activeElement.dataset.about;
  const rows = head.names.map(([name, words, definition], row) => {
    const cells = answer.rows[name].map((cell, place) => make("span", {
      class: `ds-cell ds-cell-${cell.state}${cell.impossible ? " ds-cell-impossible" : ""}`, role: "button",
      tabindex: "-1", "data-about": cell.text.length > ROOM ? `${cell.text} · ${cell.about}` : cell.about, "data-at": `${row},${place}`,
      "aria-label": `${fill("noise.table.place", { place: place + 1 })}, ${words}: ${cell.text}. ${cell.about}`,
    }, make("bdi", {}, cell.text)));
    return make("div", { class: "ds-noise-row", "data-row": name }, term(words, definition), ...cells);
  });
  find("rows").replaceChildren(...rows);
  reach(...look.cell, Boolean(inside));
}

// One cell of the rows is reached by Tab, the others from it by arrow keys.
function reach(row, place, focused = true) {
  const at = [Math.min(Math.max(row, 0), look.head.names.length - 1), Math.min(Math.max(place, 0), look.noise.length - 1)];
  cellAt(look.cell)?.setAttribute("tabindex", "-1");
  look.cell = at;
  cellAt(at).setAttribute("tabindex", "0");
  if (focused) cellAt(at).focus();
}

function cellAt([row, place]) {
  return find("rows").querySelector(`[data-at="${row},${place}"]`);
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -99], End: [0, 99] };

function onCellKey(event) {
  const cell = event.target.closest("[data-at]");
  if (!cell) return;
  const [row, place] = cell.dataset.at.split(",").map(Number);
  const step = STEPS[event.key];
  if (step) reach(row + step[0], place + step[1]);
  else if (event.key === "Enter" || event.key === " ") chooseCell(row, place);
  else return;
  event.preventDefault();
}

// The figures below show the chosen token's place and, in a drafter's row, that drafter.
function chooseCell(row, place) {
  choosePlace(place);
  const name = look.head.names[row][0];
  if (row > 0 && name !== look.drafter) chooseDrafter(name);
}

function chooseDrafter(name) {
  find("drafter").value = name;
  look.drafter = name;
  look.touched = true;
  ask();
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
    const answer = await patiently(served.noise_sweep([key, asked]), "sweep");
    if (key !== look.key || asked.place !== look.place || asked.drafter !== look.drafter) return sweepSoon();
    complain("sweep", answer.error);
    if (answer.error) return;
    look.sweep = answer;
    rememberAddress();
    draw("sweep");
  } finally {
    sweeping = false;
  }
}

function complain(about, sentence = "") {
  if ((faults[about] ?? "") === sentence) return; // not announced again
  faults[about] = sentence;
  const lines = Object.entries(faults).filter(([, words]) => words).map(([name, words]) => {
    const dismiss = make("button", { class: "ds-quiet", type: "button", onclick: () => complain(name) }, TEXTS["status.dismiss"]);
    return make("p", {}, make("span", {}, words), dismiss);
  });
  find("fault").replaceChildren(...lines);
  find("fault").hidden = !lines.length;
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
  if (frame.hidden && drawn[name]) drawn[name] = savedAs(name, figure, { ...figure.layout, width: drawn[name].layout.width });
  if (frame.hidden) return;
  const layout = { ...figure.layout };
  if (name === "strips") {
    const width = Math.max(find("board").clientWidth, SIDE + COLUMN * look.noise.length);
    layout.width = width;
    find("board").style.setProperty("--ds-board", `${width}px`);
    find("sliders").style.setProperty("--ds-slider", `${layout.height - layout.margin.t - layout.margin.b + 12}px`);
    find("sliders").style.inset = `${layout.margin.t}px 0 ${layout.margin.b}px ${SIDE}px`;
  } else {
    layout.width = Math.max(frame.clientWidth - 2, LEAST[name]);
  }
  drawn[name] = savedAs(name, figure, layout);
  Plotly.react(figureArea(name), figure.data, layout, CONFIG).then((area) => bind(name, area));
}

// What the figure's JSON holds: the main picture's rows of tokens as well.
function savedAs(name, figure, layout) {
  const saved = { data: figure.data, layout };
  return name === "strips" ? { ...saved, tokens: look.answer.drafts } : saved;
}

// The main picture with its rows of tokens above the columns, its sliders and its noise, which the
// page sets around it.
const ROW = 26; // px
const INKS = { verifier: "--ds-text-verifier", accepted: "--ds-ink", rejected: "--ds-text-rejected", unreached: "--ds-dim" };
const plain = (words) => words.replace(/&/g, "&amp;").replace(/</g, "&lt;");

PICTURES.strips = ({ data, layout }) => {
  const { answer } = look;
  if (!answer) return null; // of a context that is only just asked about
  const [ink, dim, mono, blue] = ["--ds-ink", "--ds-dim", "--ds-mono", "--ds-role-verifier"].map(cssValue);
  const put = (text, x, y, yshift, color, more) => ({ text, x, y, yshift, xref: "x", yref: "paper", yanchor: "middle", showarrow: false, font: { family: mono, size: 14, color }, ...more });
  const named = (words, y, yshift) => put(plain(words), 0, y, yshift, ink, { xref: "paper", xanchor: "left", xshift: -SIDE, font: { size: 13, color: ink } });
  const { names } = look.head;
  const rows = names.flatMap(([name, words], row) => {
    const yshift = ROW * (names.length - row - 0.5) + 8;
    const cells = answer.rows[name].map(({ text, state, impossible }, place) => {
      const characters = [...text];
      const said = plain(characters.length > ROOM ? `${characters.slice(0, ROOM - 1).join("")}…` : text);
      const struck = state === "rejected" ? `<s>${said}</s>` : said;
      const role = cssValue(`--ds-role-${state}`);
      const box = { borderpad: 2, borderwidth: 1.5, bordercolor: role, bgcolor: state === "accepted" ? `${role}38` : undefined };
      return put(impossible ? `<u>${struck}</u>` : struck, place, 1, yshift, cssValue(INKS[state]), box);
    });
    return [named(words, 1, yshift), ...cells];
  });
  const half = data[0].width / 2; // of a column
  const small = { font: { family: mono, size: 12, color: dim } };
  const noise = answer.noise.map((u, place) => put(`<i>u</i>${sub(place + 1)} ${u.toFixed(3)}`, place, 0, -ROW / 2 - 4, dim, small));
  const handles = answer.noise.map((u, place) => ({ type: "line", x0: place - half, x1: place + half, y0: u, y1: u, line: { color: blue, width: 5 } }));
  const margin = { ...layout.margin, t: layout.margin.t + ROW * names.length + 8, b: layout.margin.b + ROW };
  const height = layout.height + ROW * (names.length + 1) + 8;
  const annotations = [...rows, named(TEXTS["noise.row.noise"], 0, -ROW / 2 - 4), ...noise];
  const inked = data.map((trace) => (trace.textfont ? { ...trace, textfont: { ...trace.textfont, color: ink } } : trace));
  return { data: inked, layout: { ...layout, margin, height, annotations, shapes: handles } };
};

function bind(name, area) {
  const onClick = (handler) => bindOnce(area, "plotly_click", handler);
  if (name === "sweep") onClick((event) => move(look.place, Math.min(0.999, Math.max(0, Number(event.points[0].x)))));
  if (name === "branches") onClick((event) => choosePlace(Math.min(Number(event.points[0].x), look.noise.length - 1)));
  if (name === "strips") onClick((event) => {
    const { customdata: facts, data, pointNumber: at } = event.points[0] ?? {};
    if (Array.isArray(facts)) move(facts[0] - 1, Math.min(data.base[at] + data.y[at] / 2, MOST_NOISE));
  });
}

function drawAll() {
  for (const name of FIGURES) draw(name);
}

function drawAgain() {
  look.noise = look.noise.map(() => Math.floor(Math.random() * 2 ** 24) / 2 ** 24);
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
  const { noise, seeded } = look.head;
  // A number's own digits are read back as the same number: below 1 and on its grid it stays there.
  if (!seeded || look.noise.some((u, place) => u !== noise[place])) query.set("u", look.noise.map(String).join(","));
  query.set("place", look.place + 1);
  if (look.drafter) query.set("drafts", look.drafter);
  query.set("rows", look.budget);
  return query;
}

function copyLink() {
  return copyAddress(look.head?.link && addressQuery());
}

async function save() {
  if (!look.head) return showTip(find("save"), TEXTS["noise.empty"]);
  const file = await patiently(served.noise_file([look.key, question()]), "file");
  complain("file", file.error);
  if (!file.error) download(file.name, file.content, "application/json");
}

function onBudget() {
  const budget = Number(find("budget").value);
  const [, least, most] = look.head.budget;
  const good = Number.isInteger(budget) && least <= budget && budget <= most;
  complain("budget", good ? "" : fill("noise.error.budget", { least, most }));
  if (!good) return;
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
    if (name !== "strips") return table(heads, rows);
    const { drafts } = look.answer.tables;
    return make("div", {}, table(drafts.heads, drafts.rows), make("h4", {}, TEXTS["noise.table.intervals"]), table(heads, rows));
  };
}
find("is-drafter").append(term(TEXTS["noise.drafter"], TEXTS["noise.drafter.is"]));
find("is-budget").append(term(TEXTS["noise.budget"], TEXTS["noise.budget.is"]));
find("again").addEventListener("click", drawAgain);
find("reset").addEventListener("click", reset);
find("drafter").addEventListener("change", () => chooseDrafter(find("drafter").value));
find("budget").addEventListener("change", onBudget);
find("save").addEventListener("click", save);
find("link").addEventListener("click", copyLink);
for (const [shows, hides] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
  find("rows").addEventListener(shows, (event) => {
    const cell = event.target.closest("[data-about]");
    if (cell) showTip(cell, cell.dataset.about);
  });
  find("rows").addEventListener(hides, (event) => { if (event.target.closest("[data-about]")) hideTip(); });
}
find("rows").addEventListener("keydown", onCellKey);
find("rows").addEventListener("click", (event) => {
  const cell = event.target.closest("[data-at]");
  if (!cell) return;
  const [row, place] = cell.dataset.at.split(",").map(Number);
  reach(row, place);
  chooseCell(row, place);
});
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(() => { pullNoise(); drawAll(); }, 80); }).observe(element);
watch("value", pullNoise);
pullNoise();
