"use strict";
// Refreshes the content of a page with what the server sends. Without it, pages stay as they were loaded.
(() => {
  const content = document.querySelector("[data-live]");
  const state = document.getElementById("live-state");
  if (!content || !window.EventSource) return;
  let waiting = null;
  const isBusy = () => {
    const focused = document.activeElement;
    const selection = document.getSelection();
    return (focused !== document.body && content.contains(focused) && focused.matches("input, select, textarea, button, summary"))
      || (selection && !selection.isCollapsed && content.contains(selection.anchorNode));
  };
  const keyOf = (details) => details.querySelector("summary").textContent;
  const show = (text) => {
    const open = new Set([...content.querySelectorAll("details[open]")].map(keyOf));
    const link = content.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    // The server has escaped every text of an application, and the policy of the page allows no inline script.
    content.innerHTML = text;
    for (const details of content.querySelectorAll("details")) details.open = open.has(keyOf(details));
    if (link) [...content.querySelectorAll("a")].find((each) => each.getAttribute("href") === link)?.focus();
    state.textContent = "Live.";
  };
  const source = new EventSource(content.dataset.live);
  source.onopen = () => { state.textContent = "Live."; };
  source.onmessage = (event) => {
    if (isBusy()) { waiting = event.data; state.textContent = "Waits until you are done."; } else { waiting = null; show(event.data); }
  };
  source.addEventListener("ended", () => { source.close(); state.textContent = "The login has ended: load the page again."; });
  // A browser tries again when a connection ends, but never after a status such as 401, 502 or 503.
  source.onerror = () => {
    state.textContent = source.readyState === EventSource.CLOSED
      ? "Not refreshed any more: load the page again."
      : "The console does not answer; tries again.";
  };
  setInterval(() => { if (waiting !== null && !isBusy()) { show(waiting); waiting = null; } }, 1000);
})();
