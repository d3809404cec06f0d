/** Routes in the address's fragment: `#/jobs/ID/logs?stage=train`, so that every view can be linked and gone back to. */

import { query } from "./api.js";
import { useEffect, useState } from "./ui.js";

/** The route of an address: its parts, unescaped, and its query. */
export function parseRoute(hash) {
  const [place, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = place.split("/").filter(Boolean).map(unescapePart);
  return { parts, params: new URLSearchParams(search) };
}

/** The address of a route: link(["jobs", id], {stage: "train"}). */
export function link(parts, values = {}) {
  return `#/${parts.map(encodeURIComponent).join("/")}${query(values)}`;
}

/** Go to an address; `replace` leaves no step to go back to. */
export function go(address, replace = false) {
  if (replace) location.replace(address);
  else location.assign(address);
}

/** The route that the address bar shows. */
export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = () => setHash(location.hash);
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  return parseRoute(hash);
}

function unescapePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
