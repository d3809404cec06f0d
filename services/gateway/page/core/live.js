/**
 * What a view reads from the API, kept up to date.
 *
 * A stream only says that something changed; what is shown always comes from reading it again. So a lost connection
 * costs nothing but time: when it is back, everything is read once.
 */

import { forget, onRetry, report } from "./connection.js";
import { openStream } from "./stream.js";
import { useEffect, useRef, useState } from "./ui.js";

const PAUSE_MS = 700;
const HEARTBEAT_MS = 20000;

/**
 * Read something, and again when `nudge` is called, every 20 seconds, and when the page is seen again.
 *
 * @param {(() => Promise<unknown>) | null} load null: nothing to read
 * @param {unknown[]} inputs what `load` depends on; other ones start afresh
 * @returns {{data: any, error: Error | null, reload: () => Promise<void>, nudge: () => void}}
 */
export function useReading(load, inputs) {
  const [state, setState] = useState({ data: null, error: null });
  const current = useRef(null);

  useEffect(() => {
    const name = Symbol("reading");
    let [stopped, sequence, shown, timer, last] = [false, 0, 0, null, 0];
    setState({ data: null, error: null });

    const reload = async () => {
      if (!load) return;
      clearTimeout(timer);
      timer = null;
      last = Date.now();
      const mine = ++sequence;
      try {
        const data = await load();
        if (stopped || mine < shown) return;
        shown = mine;
        report(name, "final");
        setState({ data, error: null });
      } catch (error) {
        if (stopped || mine < shown) return;
        if (error.isOutage) report(name, "stale");
        setState((before) => ({ data: error.isOutage ? before.data : null, error }));
      }
    };
    const nudge = () => {
      if (!timer && !stopped) timer = setTimeout(reload, Math.max(0, last + PAUSE_MS - Date.now()));
    };
    const look = () => !document.hidden && nudge();
    current.current = { reload, nudge };
    reload();
    const heartbeat = setInterval(look, HEARTBEAT_MS);
    document.addEventListener("visibilitychange", look);
    const forgetRetry = onRetry(reload);
    return () => {
      stopped = true;
      clearTimeout(timer);
      clearInterval(heartbeat);
      document.removeEventListener("visibilitychange", look);
      forgetRetry();
      forget(name);
    };
  }, inputs);

  return { ...state, reload: () => current.current?.reload(), nudge: () => current.current?.nudge() };
}

/** Hold a stream while a component is shown: `on` are handlers by type; null as `url`: no stream. */
export function useStream(url, { on, onOpen, ends, again = () => url }) {
  const handlers = useRef(null);
  handlers.current = { on, onOpen, again };
  useEffect(() => {
    if (!url) return undefined;
    const types = Object.keys(on);
    const passOn = (type) => (event) => handlers.current.on[type](event);
    return openStream(url, {
      on: Object.fromEntries(types.map((type) => [type, passOn(type)])),
      onOpen: () => handlers.current.onOpen?.(),
      ends,
      again: () => handlers.current.again(),
    });
  }, [url]);
}

/**
 * Have `nudge` called whenever something in the service changes; all at once where changes may have been missed.
 *
 * @param {(id: string) => boolean} [concerns] whether a job's change matters; absent: each does
 */
export function useChanges(nudge, { concerns = () => true, off = false } = {}) {
  const job = (event) => concerns(JSON.parse(event.data).id) && nudge();
  useStream(off ? null : "/v1/events", { on: { job, fleet: nudge, reset: nudge }, onOpen: nudge });
}

/** The present, again every `ms`. */
export function useNow(ms = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}
