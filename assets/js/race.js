// A race replayed: every racer's measured times on one clock, the text growing lane by lane.

const race = { id: null, data: null, time: 0, end: 0, pace: 1, playing: null, last: 0 };

async function pullRace() {
  const value = props.value;
  if (!value?.race || value.race === race.id) return;
  const [answer] = await Promise.all([served.race_of(value.race), plotlyThere]);
  if (props.value?.race !== value.race) return; // another was asked for meanwhile
  if (answer.error) {
    find("caption").textContent = answer.error;
    return;
  }
  stopClock();
  race.id = value.race;
  race.data = answer;
  race.end = Math.max(...answer.racers.map((racer) => racer.ticks.at(-1)?.seconds ?? 0));
  find("controls").disabled = false;
  find("label").textContent = { recorded: TEXTS["race.recorded"], opened: TEXTS["player.opened"] }[answer.state] ?? "";
  find("again").hidden = answer.state === "own" || !answer.link;
  find("again").href = `?${answer.link}`;
  rememberRace();
  find("title").textContent = find("title").title = answer.title;
  buildLanes();
  find("said").replaceChildren(...answer.said.map((sentence) => make("p", {}, sentence)));
  drawFigures();
  startClock(0);
}

// The address bar holds what measures this race again; not where the page only shows one.
function rememberRace() {
  if (race.data.state !== "own" || element.offsetParent === null) return;
  setAddress(new URLSearchParams(race.data.link ?? "tab=race"));
}

function copyLink() {
  const link = race.data?.link;
  return copyAddress(link && new URLSearchParams(link));
}

async function saveRace() {
  const answer = await served.race_file(race.id);
  if (answer.error) showTip(find("save"), answer.error);
  else download(answer.name, answer.race, "application/json");
}

function togglePlay() {
  if (!race.data) return;
  if (race.playing !== null) stopClock();
  else startClock(race.time >= race.end ? 0 : race.time);
}

// Space plays and stops, as it does for a run.
function onKey(event) {
  if (event.key !== " " || event.defaultPrevented || element.offsetParent === null) return;
  if (event.target.closest?.("input:not([type=range]), textarea, button, [contenteditable], [role=listbox]")) return;
  event.preventDefault();
  togglePlay();
}

function buildLanes() {
  find("lanes").replaceChildren(...race.data.racers.map((racer) => {
    const value = (name, words, definition) => make("div", { class: "ds-counter" }, make("span", { class: "ds-lane-value", "data-lane": name }, "–"), " ", term(words, definition));
    const lane = make(
      "article", { class: "ds-lane", "data-decoder": racer.decoder },
      make("header", {},
        make("span", { class: "ds-lane-mark" }), make("strong", {}, racer.decoder),
        make("span", { class: "ds-lane-place", "data-lane": "place" }),
        racer.own_text ? term(TEXTS["race.lane.own"], racer.own_text) : null,
        value("tokens", TEXTS["count.tokens"], TEXTS["race.tokens.is"]),
        value("speed", TEXTS["count.speed"], TEXTS["race.speed.is"]),
        value("percall", TEXTS["count.tokens_per_call"], TEXTS["count.tokens_per_call.is"])),
      make("div", { class: "ds-lane-text", dir: "auto" }));
    lane.querySelector(".ds-lane-mark").style.background = racer.colour;
    const box = lane.querySelector(".ds-lane-text");
    racer.chips = [];
    racer.ticks.forEach((tick, index) => {
      for (const [words, source] of tick.pieces) {
        const chip = make("span", { class: `ds-chip ds-${source === "draft" ? "accepted" : "verifier"}`, hidden: true }, words);
        box.append(chip);
        racer.chips.push([chip, index]);
      }
    });
    racer.lane = lane;
    racer.at = -1;
    return lane;
  }));
}

function startClock(from) {
  race.time = from;
  race.last = performance.now();
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (reduced) race.time = race.end;
  const tick = (now) => {
    race.time = Math.min(race.end, race.time + ((now - race.last) / 1000) * race.pace);
    race.last = now;
    showTime();
    race.playing = race.time < race.end ? requestAnimationFrame(tick) : null;
    find("play").classList.toggle("ds-playing", race.playing !== null);
  };
  race.playing = requestAnimationFrame(tick);
}

function stopClock() {
  cancelAnimationFrame(race.playing);
  race.playing = null;
  find("play").classList.remove("ds-playing");
}

function showTime() {
  find("clock").textContent = `${race.time.toFixed(2)} s`;
  find("scrub").value = race.end ? (1000 * race.time) / race.end : 0;
  for (const racer of race.data.racers) showLane(racer);
  const done = race.data.racers.filter(isDone).length;
  const all = race.data.racers.length;
  find("caption").textContent = done === all ? fill("race.done", { first: race.data.racers.find((racer) => racer.place === 1).decoder }) : fill("race.running", { done, all });
}

function isDone(racer) {
  return race.time >= (racer.ticks.at(-1)?.seconds ?? 0);
}

function showLane(racer) {
  let reached = -1;
  for (let k = 0; k < racer.ticks.length && racer.ticks[k].seconds <= race.time; k += 1) reached = k;
  const done = isDone(racer);
  racer.lane.classList.toggle("ds-lane-done", done);
  set(racer, "place", done ? fill("race.place", { place: racer.place, seconds: (racer.ticks.at(-1)?.seconds ?? 0).toFixed(2) }) : "");
  if (reached === racer.at) return;
  racer.at = reached;
  let tokens = 0;
  for (const [chip, index] of racer.chips) {
    chip.hidden = index > reached;
    if (!chip.hidden) tokens += 1;
  }
  const seconds = reached >= 0 ? racer.ticks[reached].seconds : 0;
  const counted = tokens - (racer.free ?? 0);
  set(racer, "tokens", tokens);
  set(racer, "speed", seconds > 0 ? short(counted / seconds) : "–");
  set(racer, "percall", racer.calls === null || reached < 0 ? "–" : (counted / Math.max(1, reached + 1 - (racer.free ? 1 : 0))).toFixed(2));
  const box = racer.lane.querySelector(".ds-lane-text");
  box.scrollTop = box.scrollHeight;
}

function set(racer, name, words) {
  racer.lane.querySelector(`[data-lane="${name}"]`).textContent = words;
}

function drawFigures() {
  for (const name of ["speed", "time"]) {
    const figure = race.data?.figures[name];
    if (!figure) continue;
    const layout = { ...figure.layout, width: find(`${name}-frame`).clientWidth };
    drawn[name] = { data: figure.data, layout };
    const area = figureArea(name);
    Plotly.react(area, figure.data, layout, CONFIG).then(() => bindOnce(area, "plotly_click", (event) => showLaneOf(event.points[0].y)));
  }
}

// The lane of a bar that was clicked.
function showLaneOf(decoder) {
  for (const racer of race.data.racers) racer.lane.classList.toggle("ds-lane-chosen", racer.decoder === decoder);
  race.data.racers.find((racer) => racer.decoder === decoder)?.lane.scrollIntoView({ block: "nearest" });
}

TABLES.speed = () => table(race.data.table.heads, race.data.table.rows);
TABLES.time = () => table(race.data.times.heads, race.data.times.rows);

placeControls();
for (const name of ["speed", "time"]) buildFigure(name, `race.${name}`, drawFigures);
find("play").addEventListener("click", togglePlay);
find("save").addEventListener("click", saveRace);
find("link").addEventListener("click", copyLink);
document.addEventListener("keydown", onKey);
find("scrub").addEventListener("input", (event) => { stopClock(); race.time = (race.end * event.target.value) / 1000; showTime(); });
element.querySelectorAll("[data-pace]").forEach((button) => button.addEventListener("click", () => {
  race.pace = Number(button.dataset.pace);
  element.querySelectorAll("[data-pace]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
}));
let resizing = null;
new ResizeObserver(() => { clearTimeout(resizing); resizing = setTimeout(() => { if (race.data && element.offsetParent) drawFigures(); }, 80); }).observe(element);
watch("value", pullRace);
pullRace();
