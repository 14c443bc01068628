// Steps through a run: every step has three moments, drafted → verified → committed.

const MOMENTS = ["drafted", "verified", "committed"];
const PAUSE = { drafted: 900, verified: 900, committed: 600 }; // ms shown while playing
const run = { id: null, info: null, steps: [], state: "empty", label: "", link: null };
const at = { step: 0, moment: 2, node: null, following: true, playing: null };
const narrow = window.matchMedia("(max-width: 640px)");
let pulling = null;

function reset(id) {
  pause();
  Object.assign(run, { id, info: null, steps: [], state: "loading", label: "", link: null, wasLive: false, touched: false });
  Object.assign(at, { step: 0, moment: 2, node: null, following: true });
  clearText();
  element.classList.add("ds-loading");
}

// Brings the steps the server has and this page lacks. A call that comes while an answer is under
// way asks once more after it: that answer may be older than what the call is about.
async function pull(id) {
  if (pulling?.id === id) {
    pulling.again = true;
    return;
  }
  const mine = { id, again: false };
  pulling = mine;
  try {
    for (;;) {
      mine.again = false;
      const [part] = await Promise.all([served.player_steps([id, run.steps.length]), plotlyThere]);
      if (run.id !== id) return;
      if (part.error) {
        run.state = "gone";
        find("caption").textContent = part.error;
        return;
      }
      take(part);
      if (run.steps.length >= part.total && !mine.again) return;
    }
  } finally {
    if (pulling === mine) pulling = null;
    element.classList.remove("ds-loading");
  }
}

function take(part) {
  const first = run.steps.length === 0;
  Object.assign(run, { state: part.state, label: part.label, link: part.link ?? run.link });
  if (part.run && !run.info) {
    run.info = part.run;
    showPrompt(part.run, part.steps);
  }
  for (const step of part.steps) {
    addChips(step, run.steps.length);
    run.steps.push(step);
  }
  find("label").textContent = TEXTS[`player.${part.state}`] ?? "";
  find("label").className = `ds-label ds-label-${part.state}`;
  find("title").textContent = part.label;
  find("scrub").max = Math.max(0, run.steps.length - 1);
  if (run.steps.length === 0) return;
  // A long run is drawn when its first steps are here and when all are, not in between.
  if (!first && run.steps.length < part.total && part.state !== "live") return;
  find("controls").disabled = false;
  if (wanted.step !== null && (part.state !== "live" || run.steps.length > wanted.step)) {
    at.following = false;
    [at.step, at.moment] = [wanted.step, wanted.moment];
    wanted.step = null;
  }
  if (part.state === "live") run.wasLive = true;
  // On a small screen what a run writes is far below the button that started it.
  if (first && part.state === "live" && narrow.matches) element.scrollIntoView({ block: "start" });
  if (at.following && run.wasLive && !at.playing) at.step = run.steps.length - 1;
  at.step = Math.min(at.step, run.steps.length - 1);
  show();
  afterPaint(drawTimeline);
  if (part.state !== "live") afterPaint(() => drawDepth(part.depth ?? drawn.depth));
}

// The tree is seen first; what is below it follows when it has been painted.
function afterPaint(draw) {
  const id = run.id;
  requestAnimationFrame(() => setTimeout(() => { if (run.id === id && run.steps.length) draw(); }));
}

// A link may ask for a step; it is shown as soon as the run has it.
const wanted = { step: null, moment: 2 };

function goTo(step, moment) {
  if (!run.steps.length) return;
  const target = Math.max(0, Math.min(run.steps.length - 1, step));
  if (target !== at.step) at.node = null; // a node belongs to its step
  at.step = target;
  at.moment = moment;
  at.following = at.step === run.steps.length - 1 && moment === 2;
  run.touched = true;
  show();
  moveMarkerSoon();
}

function show() {
  const step = run.steps[at.step];
  if (!step) return;
  const moment = MOMENTS[at.moment];
  find("caption").textContent = caption(step, moment);
  find("step").textContent = fill("player.step", { step: at.step + 1, steps: run.steps.length });
  find("scrub").value = at.step;
  for (const name of MOMENTS) find(`moment-${name}`).setAttribute("aria-pressed", String(name === moment));
  showText(at.step, at.moment === 2);
  drawTree(step, moment);
  drawNode();
  drawCounters();
  rememberPlace();
}

function caption(step, moment) {
  const drafted = step.tree.token_ids.length;
  const accepted = countAccepted(step);
  const number = at.step + 1;
  if (moment === "drafted") {
    return drafted
      ? fill("player.moment.drafted.caption", { step: number, root: `“${visible(step.root.text)}”` })
      : fill("player.moment.drafted.none", { step: number, why: step.insight?.why ?? "" });
  }
  if (moment === "verified") {
    return drafted
      ? fill(step.rows > 1 + drafted ? "player.moment.verified.probes" : "player.moment.verified.caption", { step: number, rows: step.rows, accepted, drafted, probes: step.rows - 1 - drafted })
      : fill("player.moment.verified.none", { step: number });
  }
  const count = step.committed.length;
  if (count === accepted) return fill("player.moment.committed.all", { step: number, count });
  return fill(count === 1 ? "player.moment.committed.one" : "player.moment.committed.caption", { step: number, count });
}

// Counters up to and with the step shown, so that they grow as the run is stepped through.
function drawCounters() {
  const end = at.moment === 2 ? at.step + 1 : at.step;
  let tokens = 0, accepted = 0, drafted = 0, seconds = 0;
  for (const step of run.steps.slice(0, end)) {
    tokens += step.committed.length;
    accepted += countAccepted(step);
    drafted += step.tree.token_ids.length;
    seconds += step.seconds.draft + step.seconds.verify + step.seconds.commit;
  }
  const values = {
    tokens_per_call: end ? (tokens / end).toFixed(2) : "–",
    calls: end,
    tokens,
    speed: seconds ? short(tokens / seconds) : "–",
    accepted_per_call: end ? (accepted / end).toFixed(2) : "–",
    rate: drafted ? `${Math.round((100 * accepted) / drafted)}%` : "–",
  };
  for (const [name, value] of Object.entries(values)) find(`count-${name}`).textContent = value;
}

function buildCounters() {
  for (const name of ["tokens_per_call", "calls", "tokens", "speed", "accepted_per_call", "rate"]) {
    const words = term(TEXTS[`count.${name}`], "");
    const key = () => (name === "tokens" && run.info && isBytewise(run.info, run.steps) ? "count.tokens.bytes" : `count.${name}.is`);
    const define = () => fill(key(), { device: run.info?.device ?? "–", dtype: run.info?.dtype ?? "–" });
    words.addEventListener("pointerenter", () => showTip(words, define()));
    words.addEventListener("focus", () => showTip(words, define()));
    find("counters").append(make("div", { class: "ds-counter" }, make("div", { class: "ds-value", "data-part": `count-${name}` }, "–"), words));
  }
}

function next() {
  if (at.moment < 2) goTo(at.step, at.moment + 1);
  else if (at.step < run.steps.length - 1) goTo(at.step + 1, 0);
  else pause();
}

function previous() {
  if (at.moment > 0) goTo(at.step, at.moment - 1);
  else if (at.step > 0) goTo(at.step - 1, 2);
}

function play() {
  if (at.step === run.steps.length - 1 && at.moment === 2) goTo(0, 0);
  const tick = () => {
    at.playing = setTimeout(() => { next(); if (at.playing) tick(); }, PAUSE[MOMENTS[at.moment]]);
  };
  tick();
  playLabel();
}

function pause() {
  clearTimeout(at.playing);
  at.playing = null;
  playLabel();
}

function playLabel() {
  const words = TEXTS[at.playing ? "player.pause" : "player.play"];
  find("play").setAttribute("aria-label", words);
  find("play").title = words;
  find("play").classList.toggle("ds-playing", at.playing !== null);
}

function fullscreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else element.querySelector(".ds-player").requestFullscreen();
}

// The address bar holds what makes this run again, and the place in it.
function rememberPlace() {
  // What was only shown, not asked for, must not overwrite the link that was pasted.
  if (run.state === "recorded" && !run.touched) return;
  if (!GIVEN.owns_address || !run.info || element.offsetParent === null) return;
  setAddress(run.link ? placeQuery() : new URLSearchParams("tab=decode")); // no link makes this run again
}

function placeQuery() {
  const query = new URLSearchParams(run.link);
  query.set("step", at.step + 1);
  query.set("moment", MOMENTS[at.moment]);
  return query;
}

function copyLink() {
  return copyAddress(run.link && placeQuery(), TEXTS[run.info?.branch ? "player.link.branch" : "player.link.long"]);
}

async function save() {
  const answer = await served.player_trace(run.id);
  if (answer.error) showTip(find("save"), answer.error);
  else download(answer.name, answer.trace, "application/json");
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || element.offsetParent === null) return;
  if (window.draftscopeActive && window.draftscopeActive !== element && window.draftscopeActive.isConnected) return;
  if (event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select, [contenteditable], [role=listbox], [role=slider]")) return;
  const pressed = { ArrowRight: next, ArrowLeft: previous, " ": () => (at.playing ? pause() : play()), f: fullscreen }[event.key];
  if (!pressed || !run.steps.length || (event.key === " " && event.target.closest?.("button, summary, a"))) return;
  event.preventDefault();
  pressed();
}

function onValue() {
  const value = props.value;
  if (!GIVEN.owns_address) element.closest(".block").dataset.shown = String(Boolean(value?.run));
  if (!value || !value.run) return;
  if (value.step) Object.assign(wanted, { step: value.step - 1, moment: Math.max(0, MOMENTS.indexOf(value.moment ?? "committed")) });
  if (value.run !== run.id) reset(value.run);
  pull(value.run);
}

function redraw() {
  if (!run.steps.length || element.offsetParent === null) return;
  drawTimeline();
  drawTree(run.steps[at.step], MOMENTS[at.moment]);
  drawDepth(drawn.depth);
}

placeControls();
buildCounters();
playLabel();
for (const name of ["tree", "timeline", "depth"]) buildFigure(name, `player.${name}`, redraw);
MOMENTS.forEach((name, index) => find(`moment-${name}`).addEventListener("click", () => goTo(at.step, index)));
find("previous").addEventListener("click", previous);
find("next").addEventListener("click", next);
find("first").addEventListener("click", () => goTo(0, 0));
find("last").addEventListener("click", () => goTo(run.steps.length - 1, 2));
find("play").addEventListener("click", () => (at.playing ? pause() : play()));
find("fullscreen").addEventListener("click", fullscreen);
find("scrub").addEventListener("input", (event) => goTo(Number(event.target.value), 2));
find("tree-frame").addEventListener("keydown", onTreeKey);
find("spaces").addEventListener("change", remarkSpaces);
find("save").addEventListener("click", save);
find("link").addEventListener("click", copyLink);
// A button that was clicked with the mouse gives the keyboard back, so that space plays.
find("controls").addEventListener("click", (event) => { if (event.detail > 0) event.target.closest("button")?.blur(); });
element.addEventListener("pointerdown", () => { window.draftscopeActive = element; });
document.addEventListener("keydown", onKey);
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(redraw, 80); }).observe(element);
watch("value", onValue);
clearText();
onValue();
