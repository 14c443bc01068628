// The text of a run as chips: accepted or the verifier's own, with a bar where a step begins.

const text = { chips: [], decoder: null };

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

function clearText() {
  text.chips = [];
  text.decoder = new TextDecoder("utf-8");
  find("text").replaceChildren();
  find("prompt-text").replaceChildren();
  find("text-empty").hidden = false;
}

function showPrompt(run, steps) {
  find("prompt").hidden = false;
  const own = run.prompt_tokens.length - (run.branch?.forced ?? 0);
  find("prompt-count").textContent = fill(isBytewise(run, steps) ? "player.prompt.bytes" : "player.prompt.count", { count: own });
  find("prompt-text").textContent = joined(run.prompt_tokens.slice(0, own));
  if (!run.branch) return;
  // A branch goes on from tokens that were taken over; the last of them is the one followed.
  const taken = make("span", { class: "ds-chip ds-forced" }, joined(run.prompt_tokens.slice(own)));
  taken.addEventListener("pointerenter", () => showTip(taken, TEXTS["player.taken"]));
  taken.addEventListener("pointerleave", hideTip);
  find("text").append(taken);
}

// Whether every token is one byte, but for marks such as <|user|>.
function isBytewise(info, steps) {
  const shown = [...info.prompt_tokens.map((token) => token.text), ...steps.flatMap((step) => step.committed.map((token) => token.text))];
  return shown.every((words) => shownBytes(words).length <= 1 || /^<\|.*\|>$/.test(words));
}

function joined(tokens) {
  return new TextDecoder("utf-8").decode(new Uint8Array(tokens.flatMap((token) => [...shownBytes(token.text)])));
}

// A token's bytes from how it is shown: ‹e2 96› is the part of a character, all else is text.
function shownBytes(words) {
  const part = /^‹((?:[0-9a-f]{2} ?)+)›$/.exec(words);
  return part ? part[1].split(" ").map((hex) => parseInt(hex, 16)) : new TextEncoder().encode(words);
}

// Chips are made once, when their step arrives; moving through the run only shows and hides them.
function addChips(step, index) {
  const box = find("text");
  step.committed.forEach((token, place) => {
    const words = text.decoder.decode(bytesOf(token.bytes), { stream: true });
    const chip = make("span", {
      class: `ds-chip ds-${token.source === "draft" ? "accepted" : "verifier"}`,
      hidden: true,
      "data-step": index,
    });
    if (place === 0 && index > 0) chip.classList.add("ds-boundary");
    fillChip(chip, words, !words && token.text !== "");
    chip.dataset.words = words; // empty until the bytes that complete a character have come
    chip.addEventListener("pointerenter", () => showTip(chip, chipTip(token, index)));
    chip.addEventListener("pointerleave", hideTip);
    chip.addEventListener("click", () => goTo(index, 2));
    text.chips.push({ chip, step: index });
    box.append(chip);
  });
}

function chipTip(token, index) {
  const source = TEXTS[token.source === "draft" ? "timeline.accepted" : "timeline.verifier"];
  return `${visible(token.text)} · ${source} · ${fill("player.step", { step: index + 1, steps: run.steps.length })}`;
}

function fillChip(chip, words, partial) {
  const marked = find("spaces").checked;
  chip.classList.toggle("ds-partial", partial);
  if (!marked) {
    chip.replaceChildren(words);
    return;
  }
  chip.replaceChildren();
  for (const piece of words.split(/( |\n|\t)/)) {
    if (piece === " ") chip.append(make("span", { class: "ds-mark" }, "␣"));
    else if (piece === "\n") chip.append(make("span", { class: "ds-mark" }, "↵"), "\n");
    else if (piece === "\t") chip.append(make("span", { class: "ds-mark" }, "⇥"));
    else if (piece) chip.append(piece);
  }
}

function remarkSpaces() {
  for (const { chip } of text.chips) fillChip(chip, chip.dataset.words, chip.classList.contains("ds-partial"));
}

// Shows the chips of all steps before `step`, and of `step` itself once it is committed.
function showText(step, committed) {
  const end = committed ? step : step - 1;
  let last = null;
  for (const { chip, step: own } of text.chips) {
    const on = own <= end;
    if (chip.hidden === on) chip.hidden = !on;
    chip.classList.toggle("ds-now", own === step && on);
    if (on) last = chip;
  }
  find("text-empty").hidden = last !== null;
  if (last) {
    const box = find("text-box");
    const under = last.offsetTop + last.offsetHeight - box.clientHeight + 12;
    if (under > box.scrollTop || last.offsetTop < box.scrollTop) box.scrollTop = Math.max(0, under);
  }
}
