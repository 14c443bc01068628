// A circuit looked at: what is asked (a window, a clamp, a sample, a pair) goes to the server, which
// answers with the figures under it; the rest of the view stays. A window begins with the tokens
// `taken`, which clicks chose, and goes on with the text `given`.

const NOTHING = { taken: [], given: "", clamp: null, sample: null, pair: null };
const INK = "#1B1E23"; // stands in figures for the page's ink
const CONTROL = /[\u0000-\u001f\u007f]/; // what a line of text cannot hold
const view = { pulled: null, key: null, data: null, asked: NOTHING, answer: null, answered: null, drawnNumber: 0, touched: false };
let asking = null;
const FIGURES = ["graph", "marginals", "verdicts", "latents", "information", "acceptance"];
const TYPING = 220; // ms without a key before a window is asked for

async function pullView() {
  const value = props.value;
  if (element.offsetParent === null || value === view.pulled) return; // a hidden tab waits
  view.pulled = value;
  const asks = Object.keys(NOTHING).some((name) => value?.ask?.[name]?.length);
  if (!value?.view || (value.view === view.key && !asks)) return;
  const key = value.view;
  const first = view.key === null;
  view.key = key;
  element.classList.add("ds-loading");
  const [answer] = await Promise.all([served.circuit_view(key), plotlyThere]);
  if (view.key !== key) return;
  element.classList.remove("ds-loading");
  if (answer.error) {
    view.key = view.pulled = null; // the same view can be chosen again
    return complain(answer.error);
  }
  view.data = answer;
  view.touched = !first || asks;
  view.asked = { ...NOTHING, ...value.ask };
  showView();
  await look();
}

function showView() {
  const { data } = view;
  find("label").textContent = data.label;
  find("title").textContent = data.title;
  const behind = make("span", { class: "ds-dim" }, `${TEXTS["circuit.context"]} `);
  find("context").replaceChildren(behind, make("span", { class: "ds-context-text" }, visibleBreaks(data.context)), make("span", { class: "ds-context-end" }, "▏"));
  find("context").title = data.prompt;
  find("words").textContent = data.words;
  find("measured").textContent = data.measured;
  find("compared").textContent = data.compared;
  for (const kind of ["joint", "independent"]) {
    find(`count-${kind}`).replaceChildren(...data.counts[kind].map((words) => make("span", {}, words)));
    find(kind).replaceChildren(...data.samples[kind].map((sample, index) => sampleButton(kind, index, sample)));
  }
  find("clamp-box").hidden = data.latents === 0;
  find("ask").disabled = false;
}

function visibleBreaks(text) {
  return text.replace(/\n/g, "↵");
}

function sampleButton(kind, index, sample) {
  const marks = sample.marks.map((words, place) => make("span", { class: `ds-mark-bad ds-mark-${sample.kinds[place]}` }, words));
  const button = make(
    "button",
    { type: "button", class: `ds-sample${sample.marks.length ? " ds-sample-bad" : ""}`, "data-kind": kind, "data-index": index, "aria-pressed": "false", onclick: () => chooseSample(kind, index) },
    make("span", { class: "ds-sample-text" }, sample.text),
    make("span", { class: "ds-sample-marks" }, ...marks),
    make("span", { class: "ds-sample-p" }, sample.log_p),
  );
  return make("li", {}, button);
}

// Asks for what is wanted now; what is typed meanwhile is asked for after the answer has come.
async function look() {
  if (asking) {
    asking.again = true;
    return;
  }
  asking = { again: true };
  element.classList.add("ds-asking");
  let fault = "";
  try {
    while (asking.again) {
      asking.again = false;
      const key = view.key;
      const answer = await served.circuit_look([key, view.asked]);
      if (key !== view.key) asking.again = true;
      if (asking.again) continue;
      if (answer.error && view.answered !== key && view.asked !== NOTHING) {
        // A link asked for what is not there: the view itself is shown, and the sentence.
        fault = answer.error;
        view.asked = NOTHING;
        asking.again = true;
        continue;
      }
      show(answer, fault);
    }
  } finally {
    asking = null;
    element.classList.remove("ds-asking");
  }
}

function show(answer, fault) {
  complain(answer.error ?? fault);
  if (!answer.error) {
    Object.assign(view, { answer, answered: view.key });
    if (CONTROL.test(view.asked.given)) view.asked = { ...view.asked, taken: answer.tokens, given: "" };
  }
  showChosen();
  rememberAddress();
  if (answer.error) return;
  find("caption").textContent = answer.said;
  find("posterior").textContent = answer.posterior;
  find("informed").textContent = `${answer.informed} ${view.data.bound}`.trim();
  showPair(answer.pair);
  figureArea("graph").setAttribute("aria-label", answer.said);
  drawAll();
}

function showPair(pair) {
  find("pair").hidden = !pair;
  if (pair) find("pair").replaceChildren(make("p", { class: "ds-note" }, pair.said), make("div", { class: "ds-table-box" }, table(pair.heads, pair.rows)));
}

function complain(sentence) {
  find("fault").textContent = sentence;
  find("fault").hidden = !sentence;
}

function showChosen() {
  const { sample, clamp, given, taken, pair } = view.asked;
  element.querySelectorAll(".ds-sample").forEach((button) => {
    const chosen = sample && button.dataset.kind === sample[0] && Number(button.dataset.index) === sample[1];
    button.setAttribute("aria-pressed", String(Boolean(chosen)));
  });
  find("clear").disabled = !sample && !clamp && !given && !taken.length && !pair;
  showTaken();
  if (document.activeElement !== find("given")) find("given").value = given;
  fillSelects();
}

// The tokens that clicks chose, each a button that takes itself and what follows back.
function showTaken() {
  const texts = view.answer?.texts ?? [];
  const taken = view.answer?.tokens.slice(0, view.asked.taken.length).join() === view.asked.taken.join() ? view.asked.taken : [];
  const chip = (text, place) => make("button", { type: "button", class: "ds-taken", "aria-label": fill("circuit.untake", { token: text }), title: fill("circuit.untake", { token: text }), onclick: () => untake(place) }, text);
  find("taken").replaceChildren(...taken.map((_, place) => chip(texts[place], place)));
  find("given").placeholder = taken.length ? "" : TEXTS["circuit.given.placeholder"];
}

function untake(place) {
  find("given").value = "";
  ask({ taken: view.asked.taken.slice(0, place), given: "" });
  find("given").focus();
}

function fillSelects() {
  const rank = view.answer?.figures.latents.data[0].z.length ?? 0;
  const option = (value, words) => make("option", { value }, words);
  const latents = Array.from({ length: view.data?.latents ?? 0 }, (_, latent) => option(latent, String(latent + 1)));
  const states = Array.from({ length: rank }, (_, state) => option(state, String(state + 1)));
  find("latent").replaceChildren(option("", "–"), ...latents);
  find("state").replaceChildren(option("", "–"), ...states);
  const [latent, state] = view.asked.clamp ?? [find("latent").dataset.wish ?? "", ""];
  find("latent").value = String(latent);
  find("state").value = String(state);
}

function drawAll() {
  if (!view.answer || element.offsetParent === null) return;
  const all = inInk({ ...view.data.figures, ...view.answer.figures });
  for (const name of FIGURES) {
    element.querySelector(`[data-figure="${name}"]`).hidden = !all[name];
    if (!all[name]) continue;
    if (!find(`${name}-table`).hidden) find(`${name}-table`).replaceChildren(TABLES[name]());
    const layout = { ...all[name].layout };
    const frame = find(`${name}-frame`);
    const room = frame.clientWidth - 2;
    if (name === "graph") {
      // Small labels let a wide graph be pressed together before its frame scrolls.
      const spare = Math.max(0, room - layout.width);
      layout.xaxis = { ...layout.xaxis, range: [-spare / 2, layout.width + spare / 2] };
      layout.width = Math.max(room, Math.round(layout.width * layout.meta.squeeze));
      frame.style.height = `${layout.height + 18}px`;
    } else if (name === "marginals") {
      layout.width = Math.max(room, 64 * layout.xaxis.tickvals.length);
    } else {
      layout.width = room;
    }
    if (frame.hidden || room < 50) continue;
    drawn[name] = { data: all[name].data, layout };
    Plotly.react(figureArea(name), all[name].data, layout, CONFIG).then((area) => bind(name, area));
  }
}

// Figures with the page's ink where they say what is chosen; it differs between light and dark.
function inInk(figures) {
  return JSON.parse(JSON.stringify(figures).replaceAll(INK, cssValue("--ds-ink")));
}

function bind(name, area) {
  bindOnce(area, "plotly_click", ({ points, event }) => {
    const { customdata: chosen, pointNumber } = points[0] ?? {};
    if (!Array.isArray(chosen)) return;
    if (name === "graph" || name === "latents") toggleClamp(chosen[0], chosen[1]);
    if (name === "verdicts") chooseSample(chosen[0], chosen[1]);
    if (name === "marginals") takeToken(chosen[3], view.answer.bars[pointNumber], event);
    if (name === "information") choosePair(chosen);
    if (name === "acceptance") chooseDecoder(chosen[0]);
  });
}

// A token of the first free position becomes the next one that the window begins with; a click
// elsewhere is told which position that is.
function takeToken(position, token, event) {
  const free = view.answer.tokens.length + 1;
  if (position !== free) {
    const full = free > view.data.window;
    return tellAt(event, full ? TEXTS["circuit.full"] : fill("circuit.free", { position: free }));
  }
  clearTimeout(typing);
  find("given").value = "";
  ask({ taken: [...view.answer.tokens, token], given: "" });
}

function tellAt(event, words) {
  showTip({ getBoundingClientRect: () => new DOMRect(event.clientX, event.clientY, 0, 0) }, words);
  setTimeout(hideTip, 2500);
}

function choosePair(pair) {
  const chosen = view.asked.pair;
  ask({ pair: chosen && chosen[0] === pair[0] && chosen[1] === pair[1] ? null : pair });
}

// A decoder's sign leads to its row in the figure's table.
function chooseDecoder(name) {
  if (find("acceptance-table").hidden) toggleTable("acceptance", drawAll);
  const rows = [...find("acceptance-table").querySelectorAll("tbody tr")];
  const row = rows.find((one) => one.cells[0].textContent === name);
  rows.forEach((one) => one.classList.toggle("ds-row-chosen", one === row));
  row?.scrollIntoView({ block: "center" });
}

function ask(change) {
  view.asked = { ...view.asked, ...change };
  view.touched = true;
  look();
}

function toggleClamp(latent, state) {
  const held = view.asked.clamp;
  ask({ clamp: held && held[0] === latent && held[1] === state ? null : [latent, state] });
}

function chooseSample(kind, index) {
  const chosen = view.asked.sample;
  ask({ sample: chosen && chosen[0] === kind && chosen[1] === index ? null : [kind, index] });
}

function drawNext() {
  const chosen = view.asked.sample;
  view.drawnNumber = chosen?.[0] === "drawn" ? chosen[1] + 1 : view.drawnNumber + 1;
  ask({ sample: ["drawn", view.drawnNumber] });
}

function clearAll() {
  find("given").value = "";
  delete find("latent").dataset.wish;
  ask(NOTHING);
}

function onSelect() {
  const latent = find("latent").value;
  const state = find("state").value;
  find("latent").dataset.wish = latent;
  if (latent !== "" && state !== "") ask({ clamp: [Number(latent), Number(state)] });
  else if (view.asked.clamp) ask({ clamp: null });
}

let typing = null;
function onType() {
  clearTimeout(typing);
  typing = setTimeout(() => ask({ given: find("given").value }), TYPING);
}

// The address bar holds the view and what is asked of it; the first view leaves it as it was.
function rememberAddress() {
  if (!view.touched || !view.data?.link || element.offsetParent === null) return;
  setAddress(addressQuery());
}

function addressQuery() {
  const query = new URLSearchParams(view.data.link);
  const { taken, given, clamp, sample, pair } = view.asked;
  if (taken.length) query.set("taken", taken.join("."));
  if (given) query.set("given", given);
  if (clamp) query.set("clamp", `${clamp[0] + 1}.${clamp[1] + 1}`);
  if (sample) query.set("sample", `${sample[0]}.${sample[1] + (sample[0] === "drawn" ? 0 : 1)}`);
  if (pair) query.set("pair", `${pair[0] + 1}.${pair[1] + 1}`);
  return query;
}

function copyLink() {
  return copyAddress(view.data?.link && addressQuery());
}

async function save() {
  const answer = view.key ? await served.circuit_file(view.key) : { error: TEXTS["circuit.empty"] };
  if (answer.error) showTip(find("save"), answer.error);
  else download(view.data.name, answer.content, "application/json");
}

// With nothing before the cursor, backspace takes the last token back.
function onGivenKey(event) {
  const field = find("given");
  if (event.key !== "Backspace" || field.selectionEnd !== 0 || !view.asked.taken.length) return;
  event.preventDefault();
  ask({ taken: view.asked.taken.slice(0, -1) });
}

// With the graph in focus, arrows move through the latents and their states; escape lets go.
function onGraphKey(event) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (event.key === "Escape") return clearAll();
  const by = steps[event.key];
  const count = view.data?.latents ?? 0;
  if (!by || !count || event.ctrlKey || event.metaKey || event.altKey) return;
  const rank = view.answer.figures.latents.data[0].z.length;
  const [latent, state] = view.asked.clamp ?? [0, by[1] < 0 ? 1 : -1];
  event.preventDefault();
  ask({ clamp: [(latent + by[0] + count) % count, Math.max(0, (state + by[1] + rank) % rank)] });
}

function tableOf(name) {
  const { heads, rows } = (view.answer.tables[name] ?? view.data.tables[name]);
  return table(heads, rows);
}

placeControls();
for (const name of FIGURES) {
  buildFigure(name, `circuit.${name}`, drawAll);
  TABLES[name] = () => tableOf(name);
}
for (const place of element.querySelectorAll("[data-term]")) {
  const key = place.dataset.term;
  place.append(term(TEXTS[key], TEXTS[`${key}.is`]));
}
find("given").addEventListener("input", onType);
find("given").addEventListener("keydown", onGivenKey);
find("latent").addEventListener("change", onSelect);
find("state").addEventListener("change", onSelect);
find("draw").addEventListener("click", drawNext);
find("clear").addEventListener("click", clearAll);
find("save").addEventListener("click", save);
find("link").addEventListener("click", copyLink);
find("graph-frame").addEventListener("keydown", onGraphKey);
new MutationObserver(drawAll).observe(document.body, { attributeFilter: ["class"] }); // light or dark
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(() => { pullView(); drawAll(); }, 80); }).observe(element);
watch("value", pullView);
pullView();
