/** Whether what the page shows is live. Every source of a view says how it fares; the header shows the worst of them. */

import { useEffect, useState } from "./ui.js";

const RANK = { stale: 3, connecting: 2, live: 1, final: 0 };
const sources = new Map();
const listeners = new Set();
const retries = new Set();

/** A source's state: `connecting`, `live`, `final` (nothing will change any more), or `stale`. */
export function report(source, state) {
  const before = sources.get(source);
  if (before?.state === state) return;
  if (before?.state === "stale" && state === "connecting") return; // it is still stale while it tries
  sources.set(source, { state, since: new Date() });
  announce();
}

/** A source is gone with its view. */
export function forget(source) {
  sources.delete(source);
  announce();
}

/** The state of all: {state, since}. */
export function connection() {
  const all = [...sources.values()];
  return all.sort((a, b) => RANK[b.state] - RANK[a.state] || a.since - b.since)[0] ?? { state: "final", since: null };
}

/** The state of all, in a component. */
export function useConnection() {
  const [state, setState] = useState(connection());
  useEffect(() => {
    const follow = () => setState(connection());
    listeners.add(follow);
    follow();
    return () => listeners.delete(follow);
  }, []);
  return state;
}

/** Have `action` done when a person asks to try again now. Returns what undoes that. */
export function onRetry(action) {
  retries.add(action);
  return () => retries.delete(action);
}

/** Try every source again. */
export function retryNow() {
  for (const action of retries) action();
}

function announce() {
  for (const listener of listeners) listener();
}
