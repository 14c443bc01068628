// A circuit looked at: what is asked (a window, a clamp, a sample) goes to the server, which
// answers with the graph, the latents and the marginals under it; the rest of the view stays.

const NOTHING = { given: "", clamp: null, sample: null };
const view = { pulled: null, key: null, data: null, asked: NOTHING, answer: null, answered: null, drawnNumber: 0, touched: false };
let asking = null;
const FIGURES = ["graph", "marginals", "verdicts", "latents", "information", "acceptance"];
const TYPING = 220; // ms without a key before a window is asked for

async function pullView() {
  const value = props.value;
  if (element.offsetParent === null || value === view.pulled) return; // a hidden tab waits
  view.pulled = value;
  const asks = Boolean(value?.ask && (value.ask.given || value.ask.clamp || value.ask.sample));
  if (!value?.view || (value.view === view.key && !asks)) return;
  const key = value.view;
  const first = view.key === null;
  view.key = key;
  element.classList.add("ds-loading");
  const lost = () => ({ error: TEXTS["circuit.error.lost"] });
  const [answer] = await Promise.all([server.circuit_view(key).catch(lost), plotlyThere]);
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
  find("bound").textContent = data.bound;
  find("measured").textContent = data.measured;
  for (const kind of ["joint", "independent"]) {
    find(`count-${kind}`).textContent = data.counts[kind];
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
    make("span", { class: "ds-sample-p", title: TEXTS["circuit.log_p.is"] }, sample.log_p),
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
      const answer = await server.circuit_look([key, view.asked]);
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
  } catch (error) {
    complain(TEXTS["circuit.error.lost"]);
  } finally {
    asking = null;
    element.classList.remove("ds-asking");
  }
}

function show(answer, fault) {
  complain(answer.error ?? fault);
  if (!answer.error) Object.assign(view, { answer, answered: view.key });
  showChosen();
  rememberAddress();
  if (answer.error) return;
  find("caption").textContent = answer.said;
  find("posterior").textContent = answer.posterior;
  figureArea("graph").setAttribute("aria-label", answer.said);
  drawAll();
}

function complain(sentence) {
  find("fault").textContent = sentence;
  find("fault").hidden = !sentence;
}

function showChosen() {
  const { sample, clamp, given } = view.asked;
  element.querySelectorAll(".ds-sample").forEach((button) => {
    const chosen = sample && button.dataset.kind === sample[0] && Number(button.dataset.index) === sample[1];
    button.setAttribute("aria-pressed", String(Boolean(chosen)));
  });
  find("clear").disabled = !sample && !clamp && !given;
  if (document.activeElement !== find("given")) find("given").value = given;
  fillSelects();
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
  const all = { ...view.data.figures, ...view.answer.figures };
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

function bind(name, area) {
  if (area.bound) return;
  area.bound = true;
  area.on("plotly_click", (event) => {
    const { customdata: chosen, pointNumber } = event.points[0] ?? {};
    if (!Array.isArray(chosen)) return;
    if (name === "graph" || name === "latents") toggleClamp(chosen[0], chosen[1]);
    if (name === "verdicts") chooseSample(chosen[0], chosen[1]);
    if (name === "marginals") takeToken(chosen[3], view.answer.bars[pointNumber]);
  });
}

// A token of the first free position becomes the next one that the window begins with.
function takeToken(position, text) {
  const part = text.startsWith("\u2039"); // bytes that are no whole character cannot be typed
  if (position === view.answer.read + 1 && !part) ask({ given: view.asked.given + text });
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
  const { given, clamp, sample } = view.asked;
  if (given) query.set("given", given);
  if (clamp) query.set("clamp", `${clamp[0] + 1}.${clamp[1] + 1}`);
  if (sample) query.set("sample", `${sample[0]}.${sample[1] + (sample[0] === "drawn" ? 0 : 1)}`);
  return query;
}

function copyLink() {
  return copyAddress(view.data?.link && addressQuery());
}

async function save() {
  const answer = view.key ? await server.circuit_file(view.key) : { error: TEXTS["circuit.empty"] };
  if (answer.error) showTip(find("save"), answer.error);
  else download(view.data.name, answer.content, "application/json");
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
const WORDS = { sum: "circuit.sum", product: "circuit.product", input: "circuit.input", tree: "circuit.tree", clamp: "circuit.clamp", given: "circuit.given", hold: "circuit.hold" };
for (const [name, key] of Object.entries(WORDS)) find(`is-${name}`).append(term(TEXTS[key], TEXTS[`${key}.is`]));
find("given").addEventListener("input", onType);
find("latent").addEventListener("change", onSelect);
find("state").addEventListener("change", onSelect);
find("draw").addEventListener("click", drawNext);
find("clear").addEventListener("click", clearAll);
find("save").addEventListener("click", save);
find("link").addEventListener("click", copyLink);
find("graph-frame").addEventListener("keydown", onGraphKey);
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(() => { pullView(); drawAll(); }, 80); }).observe(element);
watch("value", pullView);
pullView();
