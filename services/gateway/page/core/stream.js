/**
 * One stream of server-sent events, held while the page is seen.
 *
 * The browser reconnects by itself, with Last-Event-ID, while the gateway answers; where it does not, the stream is
 * opened anew, each time after a longer wait. A hidden page lets go of it: browsers allow six connections to one host.
 */

import { forget, onRetry, report } from "./connection.js";

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15000;

/**
 * @param {string} url
 * @param {object} how
 * @param {Record<string, (event: MessageEvent) => void>} how.on handlers by event type
 * @param {() => void} [how.onOpen] the stream is open, again or for the first time
 * @param {boolean} [how.ends] the stream ends for good with an event `end`
 * @param {() => string} [how.again] the address when the stream is opened anew; absent: `url`
 * @returns {() => void} closes it
 */
export function openStream(url, { on, onOpen = () => {}, ends = false, again = () => url }) {
  const name = Symbol(url);
  let source = null;
  let timer = null;
  let wait = FIRST_WAIT_MS;
  let over = false;
  let address = () => url;

  const open = () => {
    close();
    if (over || document.hidden) return;
    report(name, "connecting");
    source = new EventSource(address());
    address = again;
    source.onopen = () => {
      wait = FIRST_WAIT_MS;
      report(name, "live");
      onOpen();
    };
    source.onerror = () => {
      report(name, "stale");
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      timer = setTimeout(open, wait);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    };
    for (const [type, handle] of Object.entries(on)) source.addEventListener(type, handle);
    if (ends) source.addEventListener("end", finish);
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const finish = () => {
    over = true;
    close();
    report(name, "final");
  };
  const followVisibility = () => (document.hidden ? close() : open());

  document.addEventListener("visibilitychange", followVisibility);
  const forgetRetry = onRetry(() => !over && open());
  open();
  return () => {
    document.removeEventListener("visibilitychange", followVisibility);
    forgetRetry();
    close();
    forget(name);
  };
}
