// What every script on a page shares: texts, elements, definitions that show on hover or focus.

const TEXTS = GIVEN.texts;

// The server's functions. Where no answer comes they give one that says so; Gradio's own give
// nothing then, or throw.
const served = new Proxy(server, {
  get: (all, name) => async (...given) => {
    const answer = await all[name](...given).catch(() => undefined);
    return answer ?? { error: TEXTS["script.lost"] };
  },
});

// Plotly puts the page's address into its clip paths when there is a <base>; they would break each
// time the address changes. Gradio's <base href="./"> says what holds without it.
document.querySelector('base[href="./"]')?.remove();

function fill(key, values = {}) {
  const sentence = TEXTS[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

function find(name) {
  return element.querySelector(`[data-part="${name}"]`);
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A number as people read it: three significant digits, no exponent for what fits without.
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4) return value.toExponential(1).replace("e-", " × 10⁻").replace(/⁻(\d+)/, (_, d) => "⁻" + [...d].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join(""));
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}

// A word with its definition, shown on hover and on keyboard focus.
function term(word, definition) {
  const node = make("span", { class: "ds-term", tabindex: "0", "aria-label": `${word}: ${definition}` }, word);
  const show = () => showTip(node, definition);
  node.addEventListener("pointerenter", show);
  node.addEventListener("focus", show);
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("blur", hideTip);
  return node;
}

function tipElement() {
  let tip = document.getElementById("ds-tip");
  if (!tip) {
    tip = make("div", { id: "ds-tip", role: "tooltip", hidden: true });
    document.body.append(tip);
  }
  return tip;
}

function showTip(anchor, words) {
  const tip = tipElement();
  (document.fullscreenElement ?? document.body).append(tip);
  tip.textContent = words;
  tip.hidden = false;
  const at = anchor.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, window.innerWidth - tip.offsetWidth - 8));
  const below = at.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 6 : at.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  tipElement().hidden = true;
}

function download(name, content, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The address with this query; Gradio's own names, which begin with "__", stay as they are.
function addressOf(query) {
  for (const [name, value] of new URLSearchParams(location.search)) if (name.startsWith("__")) query.set(name, value);
  return `${location.pathname}?${query}`;
}

function setAddress(query) {
  history.replaceState(null, "", addressOf(query));
}

// Copies the address with this query; without one, says why there is none.
async function copyAddress(query, why = TEXTS["player.link.long"]) {
  if (query) await navigator.clipboard?.writeText(location.origin + addressOf(query));
  showTip(find("link"), query ? TEXTS["player.link.done"] : why);
  setTimeout(hideTip, 2000);
}

function cssValue(name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

function table(heads, rows) {
  return make(
    "table",
    { class: "ds-table" },
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, String(cell)))))),
  );
}

// The page's controls, which Gradio made elsewhere, take their place beside the picture.
function placeControls() {
  const controls = GIVEN.controls && document.getElementById(GIVEN.controls);
  if (controls) find("slot").append(controls);
  else if (GIVEN.controls) requestAnimationFrame(placeControls);
}
