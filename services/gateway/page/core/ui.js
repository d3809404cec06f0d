/** Preact, its hooks, and `html`, the template tag that every view is written with. What a template inserts is text. */

import htm from "../vendor/htm/htm.js";
import { Fragment, h, render } from "../vendor/preact/preact.js";

export { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact/hooks.js";
export { Fragment, render };
export const html = htm.bind(h);

/** Joins class names; what is false is left out. */
export const classes = (...names) => names.filter(Boolean).join(" ");
