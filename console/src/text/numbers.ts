// Numbers, sizes, times and durations as people read them. Must not: know where they are shown.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** What stands for a value that is not known. */
export const UNKNOWN = "–";

/** A whole number with separators: 1,234,567. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined || value < 0 ? UNKNOWN : whole.format(value);
}

/** A number in a few characters: 1.2M. */
export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  return Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);
}

const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"] as const;

/** A size, by powers of 1,000, as disks are sold. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || value < 0) return UNKNOWN;
  let size = value;
  let unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || size >= 99.95 ? 0 : 1;
  return `${size.toFixed(digits)} ${UNITS[unit] ?? ""}`;
}

/** A share of a whole in percent. */
export function percent(part: number, all: number): string {
  return all > 0 ? `${Math.round((part / all) * 100)} %` : UNKNOWN;
}

/** A number with its noun: 1 topic, 2 topics. */
export function plural(value: number | null | undefined, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

const STEPS: readonly (readonly [number, string])[] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1000, "s"],
  [1, "ms"],
];

/** A duration with its two largest units: 3 h 20 min. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return UNKNOWN;
  if (ms < 0) return "unlimited";
  if (ms === 0) return "0 ms";
  let rest = Math.round(ms);
  const parts: string[] = [];
  for (const [size, unit] of STEPS) {
    if (rest < size) {
      if (parts.length > 0) break;
      continue;
    }
    if (unit === "ms" && parts.length > 0) break;
    parts.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
    if (parts.length === 2 || rest === 0) break;
  }
  return parts.join(" ");
}

const pad = (value: number, width = 2): string => String(value).padStart(width, "0");

/** A moment in the reader's time zone, to the millisecond: 2026-11-30 21:05:03.120. */
export function moment(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || ms < 0) return UNKNOWN;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms`;
  return `${day(at)} ${clock(ms)}.${pad(at.getMilliseconds(), 3)}`;
}

/** The time of day: 21:05:03. */
export function clock(ms: number): string {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

function day(at: Date): string {
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

/** How long ago, or in how long: 5 min ago, in 3 d. */
export function relative(ms: number | null | undefined, now: number): string {
  if (ms === null || ms === undefined || ms < 0) return UNKNOWN;
  const distance = now - ms;
  if (Math.abs(distance) < 1000) return "now";
  const text = duration(Math.abs(distance)).split(" ").slice(0, 2).join(" ");
  return distance > 0 ? `${text} ago` : `in ${text}`;
}

/** A value per second. */
export function perSecond(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? UNKNOWN : `${format(value)}/s`;
}

/** Numbers as ranges: 0-3, 7. */
export function ranges(values: readonly number[]): string {
  const sorted = [...values].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let start = 0; start < sorted.length; ) {
    let end = start;
    while (end + 1 < sorted.length && (sorted[end + 1] ?? 0) === (sorted[end] ?? 0) + 1) end += 1;
    parts.push(end > start ? `${sorted[start]}–${sorted[end]}` : String(sorted[start]));
    start = end + 1;
  }
  return parts.join(", ");
}

/** A short duration with a tenth where it matters: 0.4 ms. */
export function milliseconds(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
