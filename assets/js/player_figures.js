// The player's figures: the draft tree, the timeline, acceptance by depth. Python made their looks;
// here only arrays are swapped.

const SQUEEZE = 0.7; // of the tree's own width
function drawTree(step, moment) {
  const area = figureArea("tree");
  const frame = find("tree-frame");
  const arrays = step.tree_arrays;
  const template = GIVEN.tree_template;
  const data = template.data.map((trace, index) => ({ ...trace, ...arrays.moments[moment][index] }));
  // A long chain is pressed together as far as its labels allow before the frame scrolls.
  const width = Math.max(Math.ceil(arrays.width * SQUEEZE), frame.clientWidth - 2);
  const height = Math.max(arrays.height, frame.clientHeight - 2);
  const slack = Math.max(0, (height - arrays.height) / 2);
  const layout = {
    ...template.layout,
    width,
    height,
    xaxis: { ...template.layout.xaxis, range: [0, Math.max(arrays.width, width)] },
    yaxis: { ...template.layout.yaxis, range: [-height + slack, slack] },
    shapes: ring(data),
  };
  drawn.tree = { data, layout };
  Plotly.react(area, data, layout, CONFIG).then(() => bindOnce(area, "plotly_click", (event) => chooseNode(event.points[0].customdata)));
  area.setAttribute("aria-label", find("caption").textContent);
  if (moment === "drafted") frame.scrollLeft = 0;
  else if (width > frame.clientWidth) frame.scrollLeft = (deepestAccepted(step) < 0 ? 0 : arrays.moments.verified.at(-1).x.at(-1) * SQUEEZE) - frame.clientWidth / 2;
  frame.scrollTop = moment === "drafted" ? 0 : lowestSettled(arrays, slack) - frame.clientHeight;
  if (!find("tree-table").hidden) find("tree-table").replaceChildren(treeTable(step));
}

// Where the verifier's own token ends, in px from the tree's top: a tall tree scrolls down to it.
function lowestSettled(arrays, slack) {
  const own = arrays.moments.verified.at(-1).y?.at(-1);
  return own === undefined || own === null ? 0 : slack - own + RING + 18;
}

// Around the node that was chosen.
const RING = 11; // px
function ring(data) {
  for (const trace of at.node === null ? [] : data) {
    const place = trace.customdata?.indexOf(at.node) ?? -1;
    if (place < 0) continue;
    const [x, y] = [trace.x[place], trace.y[place]];
    const line = { color: cssValue("--ds-ink") || "#888", width: 1.5 };
    return [{ type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yanchor: y, x0: -RING, x1: RING, y0: -RING, y1: RING, line }];
  }
  return [];
}

// With the tree in focus, up and down go through its nodes: the root, the drafted, the verifier's.
function onTreeKey(event) {
  const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!by || !run.steps.length) return;
  const own = at.moment > 0 && run.steps[at.step].committed.at(-1)?.source === "verifier";
  const nodes = [-1, ...run.steps[at.step].tree.token_ids.keys(), ...(own ? [-2] : [])];
  const place = nodes.indexOf(at.node) + by;
  event.preventDefault();
  chooseNode(nodes[Math.max(0, Math.min(nodes.length - 1, place))]);
}

function treeTable(step) {
  const tree = step.tree;
  const heads = ["node", "token", "parent", "depth", "q", "p", "status"].map((key) => TEXTS[`table.${key}`]);
  const rows = tree.token_ids.map((_, node) => [
    node + 1,
    visible(tree.texts[node]),
    tree.parents[node] < 0 ? visible(step.root.text) : `${tree.parents[node] + 1} ${visible(tree.texts[tree.parents[node]])}`,
    tree.depths[node] + 1,
    short(Math.exp(tree.log_q[node])),
    tree.log_p[node] === null ? "0" : short(Math.exp(tree.log_p[node])),
    TEXTS[`node.status.${tree.status[node]}`],
  ]);
  return table(heads, rows);
}

function countAccepted(step) {
  return step.committed.filter((token) => token.source === "draft").length;
}

function timelineArrays() {
  const x = [], accepted = [], own = [];
  run.steps.forEach((step, index) => {
    x.push(index + 1);
    accepted.push(countAccepted(step));
    own.push(step.committed.length - countAccepted(step));
  });
  return [{ x, y: accepted }, { x, y: own }];
}

function drawTimeline() {
  const area = figureArea("timeline");
  const template = GIVEN.timeline_template;
  const arrays = timelineArrays();
  const data = template.data.map((trace, index) => ({ ...trace, ...arrays[index] }));
  const width = find("timeline-frame").clientWidth;
  const steps = Math.max(run.steps.length, 8);
  const layout = {
    ...template.layout,
    width,
    xaxis: { ...template.layout.xaxis, range: [0.4, steps + 0.6] },
    yaxis: { ...template.layout.yaxis, dtick: Math.max(1, Math.ceil(Math.max(...run.steps.map((step) => step.committed.length)) / 4)) },
    shapes: [marker()],
  };
  drawn.timeline = { data, layout };
  Plotly.react(area, data, layout, CONFIG).then(() => bindOnce(area, "plotly_click", (event) => goTo(event.points[0].x - 1, 2)));
  if (!find("timeline-table").hidden) find("timeline-table").replaceChildren(timelineTable());
}

function marker() {
  const line = { color: cssValue("--ds-ink") || "#888", width: 1.5 };
  return { type: "rect", x0: at.step + 0.5, x1: at.step + 1.5, y0: 0, y1: 1, yref: "paper", line, fillcolor: "rgba(138,143,152,0.18)", layer: "below" };
}

// The step's picture comes first; of quick moves just the last is marked.
let moving = false;
function moveMarkerSoon() {
  if (moving) return;
  moving = true;
  requestAnimationFrame(() => setTimeout(() => { moving = false; moveMarker(); }));
}

function moveMarker() {
  if (drawn.timeline && run.steps.length) Plotly.relayout(figureArea("timeline"), { shapes: [marker()] });
}

function timelineTable() {
  const heads = ["step", "accepted", "own", "seconds"].map((key) => TEXTS[`table.${key}`]);
  const rows = run.steps.map((step, index) => [
    index + 1,
    countAccepted(step),
    step.committed.length - countAccepted(step),
    short(step.seconds.draft + step.seconds.verify + step.seconds.commit),
  ]);
  return table(heads, rows);
}

function drawDepth(figure) {
  const empty = !figure || !figure.data[0].x.length;
  if (figure) find("depth-empty").textContent = TEXTS["player.depth.empty"];
  find("depth-empty").hidden = !empty;
  figureArea("depth").hidden = empty;
  drawn.depth = empty ? null : figure;
  if (empty) return;
  const layout = { ...figure.layout, width: find("depth-frame").clientWidth };
  const area = figureArea("depth");
  Plotly.react(area, figure.data, layout, CONFIG).then(() => bindOnce(area, "plotly_click", (event) => goToDepth(event.points[0].x)));
  if (!find("depth-table").hidden) find("depth-table").replaceChildren(depthTable());
}

// To the next step, from the one shown on, in which a draft stood this deep.
function goToDepth(depth) {
  const count = run.steps.length;
  for (let k = 1; k <= count; k += 1) {
    const index = (at.step + k) % count;
    if (countAccepted(run.steps[index]) >= depth) return goTo(index, 2);
  }
}

function depthTable() {
  const figure = drawn.depth;
  if (!figure) return make("p", {}, TEXTS["player.depth.empty"]);
  const heads = ["x", "drafted", "reached", "stood", "stands", "given"].map((key) => TEXTS[`depth.${key}`]);
  const rows = figure.data[0].x.map((depth, index) => {
    const [stood, drafted, reached] = figure.data[0].customdata[index];
    return [depth, drafted, reached, stood, short(figure.data[0].y[index]), short(figure.data[1].y[index])];
  });
  return table(heads, rows);
}

TABLES.tree = () => treeTable(run.steps[at.step]);
TABLES.timeline = timelineTable;
TABLES.depth = depthTable;
