// Which fields someone has changed since the page was opened: the ids of their components and of all
// that holds them. Values that the page itself puts in raise no such events.
window.draftscopeTouched = new Set();
for (const kind of ['input', 'change', 'click']) {
  document.addEventListener(kind, (event) => {
    if (kind === 'click' && !event.target.closest?.('[role="option"]')) return;
    for (let part = event.target; part; part = part.parentElement) {
      if (part.id) window.draftscopeTouched.add(part.id);
    }
  }, true);
}
