/** Numbers, times and sizes as people read them. */

const DASH = "–";

/** Seconds: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  if (seconds < 1) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

/** Bytes, in powers of 1024. */
export function bytes(count) {
  if (count === null || count === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** A number with at most `digits` significant digits below a thousand; above, in whole thousands with separators. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(Number(value))) return DASH;
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en-US");
  return size !== 0 && size < 1e-3 ? Number(value).toExponential(1) : String(Number(Number(value).toPrecision(digits)));
}

/** A large count in short: 12, 3.4k, 1.2M, 5B. */
export function compact(value) {
  if (value === null || value === undefined) return DASH;
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

/** An acceptance length, always with two decimals. */
export const tokens = (length) => (Number.isFinite(length) && length !== null ? length.toFixed(2) : DASH);

/** A share of one, in percent. */
export const percent = (share, digits = 1) =>
  share === null || share === undefined ? DASH : `${(share * 100).toFixed(digits)} %`;

/** A moment in the reader's own time: the time of day, and the day where it is not today. */
export function moment(iso) {
  if (!iso) return DASH;
  const at = new Date(iso);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** How long ago: just now, 5 min ago, 3 d ago. */
export function ago(iso, now = Date.now()) {
  if (!iso) return DASH;
  const seconds = Math.max(0, (now - new Date(iso).getTime()) / 1000);
  if (seconds < 10) return "just now";
  const [size, unit] = seconds < 60 ? [1, "s"] : seconds < 3600 ? [60, "min"] : seconds < 86400 ? [3600, "h"] : [86400, "d"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

export { DASH };
