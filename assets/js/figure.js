// Around each figure: its question, buttons for data, PNG and JSON, a table, what to look at.
// A script that uses it fills `drawn` and `TABLES` and says how to draw anew.

const CONFIG = { displayModeBar: false, displaylogo: false, showSendToCloud: false, responsive: false };
const drawn = {};

// Plotly's script loads beside the page; whoever draws waits for it.
const plotlyThere = new Promise((resolve) => {
  const look = () => (window.Plotly ? resolve() : setTimeout(look, 15));
  look();
});

const TABLES = {};
const PICTURES = {}; // by figure: what its PNG shows of it, with what the page sets around it

function figureArea(name) {
  return find(`${name}-plot`);
}

function buildFigure(name, words, redraw) {
  const figure = element.querySelector(`[data-figure="${name}"]`);
  const button = (kind, action) => make("button", { class: "ds-quiet", type: "button", "data-part": `${name}-${kind}`, onclick: action }, TEXTS[`player.${kind}`]);
  const buttons = make("div", {}, button("data", () => toggleTable(name, redraw)), button("png", () => savePicture(name)), button("json", () => saveFigure(name)));
  figure.prepend(make("div", { class: "ds-figure-head" }, make("h3", {}, TEXTS[`${words}.title`]), buttons));
  find(`${name}-frame`).after(make("div", { class: "ds-table-box", "data-part": `${name}-table`, hidden: true }));
  figure.append(make("figcaption", {}, TEXTS[`${words}.caption`]));
}

function toggleTable(name, redraw) {
  const panel = find(`${name}-table`);
  if (panel.hidden && nothingYet(name, "data")) return;
  const showing = panel.hidden;
  panel.hidden = !showing;
  find(`${name}-frame`).hidden = showing;
  find(`${name}-data`).textContent = TEXTS[showing ? "player.picture" : "player.data"];
  find(`${name}-data`).setAttribute("aria-pressed", String(showing));
  if (showing) panel.replaceChildren(TABLES[name]());
  else redraw();
}

// A button of a figure that is not drawn yet says so.
function nothingYet(name, kind) {
  if (drawn[name]) return false;
  const button = find(`${name}-${kind}`);
  showTip(button, TEXTS["player.nothing_yet"]);
  button.addEventListener("pointerleave", hideTip, { once: true });
  button.addEventListener("blur", hideTip, { once: true });
  return true;
}

function savePicture(name) {
  if (nothingYet(name, "png")) return;
  const figure = PICTURES[name]?.(drawn[name]) ?? drawn[name];
  const font = { ...figure.layout.font, color: cssValue("--ds-ink") };
  const layout = { ...figure.layout, paper_bgcolor: cssValue("--ds-paper"), font };
  const { width, height } = layout;
  Plotly.downloadImage({ data: figure.data, layout }, { format: "png", filename: `draftscope-${name}`, scale: 2, width, height });
}

function saveFigure(name) {
  if (!nothingYet(name, "json")) download(`draftscope-${name}.json`, JSON.stringify(drawn[name]), "application/json");
}

function bindOnce(area, event, handler) {
  area.boundEvents ??= {};
  if (area.boundEvents[event]) return;
  area.boundEvents[event] = true;
  area.on(event, handler);
}
