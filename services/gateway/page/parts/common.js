/** Small parts that several views show: states, errors, empty lists, dialogs, paging. */

import { ago, moment } from "../core/format.js";
import { useNow } from "../core/live.js";
import { classes, html, useEffect, useRef, useState } from "../core/ui.js";

/** A job's, stage's or draft's state as a coloured word. */
export function Status({ value, label }) {
  return html`<span class=${classes("status", `is-${value}`)}><span class="dot" aria-hidden="true"></span>${label ?? value}</span>`;
}

/** A moment as "5 min ago", with the full time on hover. */
export function Ago({ at }) {
  const now = useNow(10000);
  if (!at) return html`<span>–</span>`;
  return html`<time datetime=${at} title=${moment(at)}>${ago(at, now)}</time>`;
}

/** What went wrong, and where. */
export function Problem({ error, children }) {
  if (!error) return null;
  const fields = (error.errors || []).filter((field) => field.pointer || field.message !== error.message);
  return html`<div class="notice is-bad" role="alert">
    <strong>${error.title || "Error"}</strong>
    <p>${error.message}</p>
    ${fields.length > 0 &&
    html`<ul>
      ${fields.map((field) => html`<li>${field.pointer && html`<code>${field.pointer}</code> `}${field.message}</li>`)}
    </ul>`}
    ${error.docs && html`<p class="hint">More in <code>${error.docs}</code>.</p>`} ${children}
  </div>`;
}

/** What a list says that has nothing in it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;
}

let anyViewOpened = false; // the first view leaves the focus where the browser puts it

/** A view's heading; it takes the focus when the view opens. */
export function Heading({ title, children, below }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · Eyrie`;
  }, [title]);
  useEffect(() => {
    if (anyViewOpened) heading.current?.focus({ preventScroll: true });
    anyViewOpened = true;
  }, []);
  return html`<div class="heading">
    <div class="heading-text"><h1 tabindex="-1" ref=${heading}>${title}</h1>${below}</div>
    <div class="heading-actions">${children}</div>
  </div>`;
}

/** Asks before something is done that cannot be undone. `onYes` may fail: the error is shown in the dialog. */
export function Confirm({ title, children, yes, danger, onYes, onClose }) {
  const dialog = useRef(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const act = async () => {
    setBusy(true);
    setError(null);
    try {
      await onYes();
      dialog.current?.close();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${title}>
    <h2>${title}</h2>
    <div class="dialog-text">${children}</div>
    <${Problem} error=${error} />
    <div class="dialog-buttons">
      <button type="button" class="button" onClick=${() => dialog.current.close()}>Keep it as it is</button>
      <button type="button" class=${classes("button", danger ? "is-danger" : "is-primary")} disabled=${busy} onClick=${act}>
        ${yes}
      </button>
    </div>
  </dialog>`;
}

/** An id that can be copied. */
export function Copy({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<span class="copy"
    ><code>${text}</code>${navigator.clipboard &&
    html`<button type="button" class="copy-button" onClick=${copy} aria-label=${`Copy ${text}`}>
      ${done ? "Copied" : "Copy"}
    </button>`}</span
  >`;
}

/** Steps through the pages of a list; `trail` holds the `after` of each page so far. */
export function Pager({ trail, setTrail, page }) {
  if (!page || (trail.length === 0 && !page.has_more)) return null;
  const next = () => setTrail([...trail, page.data.at(-1).id]);
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" class="button" disabled=${trail.length === 0} onClick=${() => setTrail(trail.slice(0, -1))}>
      ‹ Newer
    </button>
    <span>Page ${trail.length + 1}</span>
    <button type="button" class="button" disabled=${!page.has_more} onClick=${next}>Older ›</button>
  </nav>`;
}

/** Said while the first answer is on its way. */
export function Loading() {
  return html`<p class="loading" role="status">Reading…</p>`;
}

/** Pairs of a name and a value. */
export function Facts({ entries }) {
  return html`<dl class="facts">
    ${entries
      .filter(([, value]) => value !== undefined && value !== null && value !== "")
      .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}
