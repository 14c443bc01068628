// What became of one token: its numbers, its piece of the verifier's distribution, and why.

function chooseNode(node) {
  at.node = node;
  drawNode();
  Plotly.relayout(figureArea("tree"), { shapes: ring(drawn.tree.data) });
}

// Shows the token that was clicked; without a click, the one that tells most about the step.
function drawNode() {
  const box = find("node");
  const step = run.steps[at.step];
  const node = at.node ?? tellingNode(step);
  if (node === null || (node === -2 && at.moment === 0) || node >= step.tree.token_ids.length) {
    box.replaceChildren(make("p", { class: "ds-dim" }, TEXTS["player.node.hint"]));
  } else if (node === -1) {
    box.replaceChildren(head(step.root.text, null), make("p", {}, TEXTS["node.root"]), ...branches(step), ...candidates(step, -1));
  } else {
    box.replaceChildren(...(node === -2 ? ownDetails(step) : nodeDetails(step, node)));
  }
}

function tellingNode(step) {
  if (at.moment === 0) return null;
  const fell = step.tree.status.indexOf("rejected");
  if (fell >= 0) return fell;
  return step.committed[step.committed.length - 1].source === "verifier" ? -2 : null;
}

function head(token, status) {
  const chip = make("span", { class: `ds-chip ds-big ${status ? `ds-${status}` : ""}` }, visible(token));
  const words = TEXTS[`node.status.${status}`] ?? (status ? TEXTS["player.legend.verifier"] : null);
  return make("div", { class: "ds-node-head" }, chip, words && make("strong", {}, words));
}

function nodeDetails(step, node) {
  const tree = step.tree;
  const judged = at.moment > 0;
  const token = { id: tree.token_ids[node], text: tree.texts[node] };
  const path = [];
  for (let up = node; up >= 0; up = tree.parents[up]) path.unshift(tree.texts[up]);
  const facts = [
    [TEXTS["node.token"], `${visible(token.text)}  (${token.id})`],
    [TEXTS["node.path"], [step.root.text, ...path].map(visible).join(" → ")],
    [term(TEXTS["node.q"], TEXTS["node.q.is"]), short(Math.exp(tree.log_q[node]))],
  ];
  if (judged) facts.push([term(TEXTS["node.p"], TEXTS["node.p.is"]), tree.log_p[node] === null ? "0" : short(Math.exp(tree.log_p[node]))]);
  facts.push([TEXTS["node.origin"], tree.origins[node].join(", ")], ...weights(tree.origins[node]), ...proposed(step, node));
  const parts = [head(token.text, judged ? tree.status[node] : null), list(facts)];
  if (!judged) return parts;
  parts.push(make("p", { class: "ds-why" }, whyNode(step, node)));
  const decided = tree.status[node] === "unreached" ? null : step.committed[tree.depths[node]];
  if (decided) parts.push(...strip(step, decided, node), ...candidates(step, tree.parents[node]));
  else if (run.info.temperature > 0 && run.info.verification === "coupled") {
    parts.push(list([[term(TEXTS["node.u"], TEXTS["node.u.is"]), step.noise[tree.depths[node]].toFixed(6)]]));
  }
  if (tree.status[node] === "rejected" && GIVEN.owns_address) {
    parts.push(
      make("button", { class: "ds-button", type: "button", onclick: () => trigger("follow", { run: run.id, step: at.step, node }) }, TEXTS["player.follow"]),
    );
  }
  return parts;
}

// The trained weights of the drafters named, of whatever else the run drafted with.
function weights(origins) {
  const found = (run.info.drafter_weights ?? []).filter(({ drafter }) => origins.includes(drafter));
  if (!found.length) return [];
  const lines = found.map(({ folder, sha256 }) => make("div", {}, fill("node.weights.said", { folder, hash: sha256.slice(0, 12) })));
  return [[term(TEXTS["node.weights"], TEXTS["node.weights.is"]), make("div", {}, ...lines)]];
}

// What the drafter says of its proposal: the circuit's component, the branch of noise rows.
function proposed(step, node) {
  const insight = step.insight ?? {};
  if (insight.components?.[node]) {
    const [latent, state, share] = insight.components[node];
    const words = latent < 0 ? TEXTS["node.component.only"] : fill("node.component.said", { latent: latent + 1, state: state + 1, rank: insight.rank, share: short(100 * share) });
    return [[term(TEXTS["node.component"], TEXTS["node.component.is"]), words]];
  }
  if (insight.kind === "ptp" && insight.from !== null) return [[term(TEXTS["node.branch"], TEXTS["node.branch.is"]), fill("node.branch.said", { drafts: insight.from })]];
  return [];
}

// Where the noise rows of this step's forward lay and, once it is over, what each branch proposed:
// the verifier's own token there, then the tokens behind it. The next step goes on from one of them.
function branches(step) {
  const { kind, branches: found = [], proposed = [] } = step.insight ?? {};
  const shares = kind === "ptp" ? found.filter(([, rows]) => rows > 0) : [];
  if (!shares.length) return [];
  const kept = at.moment > 0 ? run.steps[at.step + 1]?.insight?.from : null;
  const lines = shares.map(([drafts, rows, chance]) => {
    const said = at.moment > 0 ? proposed[drafts] : null;
    const parts = [fill("node.rows.said", { rows, chance: short(chance) }), ...(said ? [" ", ...proposal(said)] : [])];
    if (drafts === kept) parts.push(" ", make("strong", {}, TEXTS["node.rows.kept"]));
    return [fill(drafts === 1 ? "node.rows.behind.one" : "node.rows.behind", { drafts }), make("span", {}, ...parts)];
  });
  return [make("h4", {}, term(TEXTS["node.rows"], TEXTS["node.rows.is"])), list(lines)];
}

function proposal({ own, texts }) {
  const chip = (words, role) => make("span", { class: `ds-chip ds-${role}` }, visible(words));
  return [chip(own.text, "verifier"), ...texts.map((words) => chip(words, "unreached"))];
}

function whyNode(step, node) {
  const tree = step.tree;
  const status = tree.status[node];
  const depth = tree.depths[node];
  if (status === "unreached") return TEXTS[depth > 0 && tree.status[tree.parents[node]] === "accepted" ? "node.why.past" : "node.why.unreached"];
  if (run.info.verification === "rejection") {
    const trial = tree.trials[node];
    if (!trial) return TEXTS["node.why.rejected.untried"];
    return fill(`node.why.${status}.rejection`, { u: short(trial[0]), chance: short(trial[1]) });
  }
  const picked = visible(step.committed[depth].text);
  return fill(`node.why.${status}.${run.info.temperature === 0 ? "greedy" : "coupled"}`, { token: `“${picked}”` });
}

function ownDetails(step) {
  const token = step.committed[step.committed.length - 1];
  const deepest = deepestAccepted(step);
  const fell = step.tree.parents.some((parent) => parent === deepest);
  return [
    head(token.text, "verifier"),
    make("p", { class: "ds-why" }, TEXTS[fell ? "node.why.own.correction" : "node.why.own"]),
    ...strip(step, token, null),
    ...candidates(step, deepest),
  ];
}

function deepestAccepted(step) {
  let deepest = -1;
  step.tree.status.forEach((status, node) => {
    if (status === "accepted" && (deepest < 0 || step.tree.depths[node] > step.tree.depths[deepest])) deepest = node;
  });
  return deepest;
}

function list(facts) {
  return make("dl", { class: "ds-facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// The line from 0 to 1 with the interval that was picked and where u fell.
function strip(step, token, node) {
  if (run.info.temperature === 0) return [list([[term(TEXTS["node.margin.greedy"], TEXTS["node.margin.greedy.is"]), short(token.margin)]])];
  const trial = node === null ? null : step.tree.trials[node];
  const [low, high] = trial ? [0, trial[1]] : token.interval;
  const u = trial ? trial[0] : token.u;
  const name = trial ? TEXTS["node.chance"] : fill("node.interval.picked", { token: `“${visible(token.text)}”` });
  const bar = make("div", { class: "ds-strip", role: "img", "aria-label": `u ${short(u)}, ${short(low)} – ${short(high)}` });
  const piece = make("div", { class: "ds-strip-piece" });
  piece.style.left = `${low * 100}%`;
  piece.style.width = `${Math.max(0.4, (high - low) * 100)}%`;
  const mark = make("div", { class: "ds-strip-u" });
  mark.style.left = `${u * 100}%`;
  bar.append(piece, mark);
  const facts = [
    [term(TEXTS["node.u"], TEXTS[trial ? "node.u.trial" : "node.u.is"]), u.toFixed(6)],
    [term(name, TEXTS[trial ? "node.chance.is" : "node.interval.is"]), trial ? short(high) : `${low.toFixed(6)} – ${high.toFixed(6)}`],
  ];
  if (!trial) facts.push([term(TEXTS["node.margin"], TEXTS["node.margin.is"]), short(token.margin)]);
  return [bar, list(facts)];
}

function candidates(step, row) {
  const found = step.candidates[String(row)];
  if (!found || at.moment === 0) return [];
  const most = found[0].p;
  return [
    make("h4", {}, TEXTS[run.info.temperature === 0 ? "node.candidates.greedy" : "node.candidates"]),
    make(
      "ol",
      { class: "ds-candidates" },
      ...found.map((candidate) => {
        const bar = make("span", { class: "ds-candidate-bar" });
        bar.style.width = `${(100 * candidate.p) / most}%`;
        return make("li", {}, make("span", { class: "ds-token" }, visible(candidate.text)), make("span", { class: "ds-candidate-track" }, bar), make("span", { class: "ds-number" }, short(candidate.p)));
      }),
    ),
  ];
}
