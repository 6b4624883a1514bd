// Numbers and times as people read them.
import { signal } from "@preact/signals";

/** The store's clock minus ours, in seconds; set from each answer that says what time it is. */
export const skew = signal(0);
export const now = signal(Date.now() / 1000);
export const zone = signal<"local" | "utc">(
  localStorage.getItem("perdure.zone") === "utc" ? "utc" : "local",
);

export function storeTime(): number {
  return Date.now() / 1000 + skew.value;
}

/** Learns the store's time; small differences are the network's. */
export function learnTime(at: number | undefined): void {
  if (at === undefined) return;
  const difference = at - Date.now() / 1000;
  if (Math.abs(difference - skew.value) > 2) skew.value = Math.abs(difference) > 2 ? difference : 0;
}

setInterval(() => {
  if (!document.hidden) now.value = storeTime();
}, 1000);

const UNITS: [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
  [1, "s"],
];

/** "2m 14s": at most two units. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 0.001) return "0s";
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))}ms`;
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toString()}s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(rest / size);
    if (parts.length === 1) {
      if (count > 0) parts.push(`${String(count).padStart(unit === "d" ? 1 : 2, "0")}${unit}`);
      break;
    }
    if (count > 0) {
      parts.push(`${count}${unit}`);
      rest -= count * size;
    }
  }
  return parts.join(" ") || "0s";
}

/** How long a job took, as the server says; while it goes on, the clock ticks here. */
export function took(job: { started_at: number | null; ended_at: number | null; took: number | null }): number {
  return job.ended_at === null && job.started_at !== null ? now.value - job.started_at : (job.took ?? Number.NaN);
}

/** "3m ago", "in 12s". */
export function relative(at: number, from: number): string {
  const gap = from - at;
  if (Math.abs(gap) < 1) return "now";
  const long = Math.abs(gap);
  const text =
    long < 60 ? `${Math.floor(long)}s`
    : long < 3600 ? `${Math.floor(long / 60)}m`
    : long < 86400 ? `${Math.floor(long / 3600)}h`
    : `${Math.floor(long / 86400)}d`;
  return gap > 0 ? `${text} ago` : `in ${text}`;
}

const two = (value: number): string => String(value).padStart(2, "0");

function fields(at: number): [number, number, number, number, number, number, number] {
  const date = new Date(at * 1000);
  return zone.value === "utc"
    ? [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds(), date.getUTCMilliseconds()]
    : [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds(), date.getMilliseconds()];
}

/** "2026-11-17 21:04:05 UTC". */
export function moment(at: number): string {
  const [year, month, day, hour, minute, second] = fields(at);
  const where = zone.value === "utc" ? " UTC" : "";
  return `${year}-${two(month)}-${two(day)} ${two(hour)}:${two(minute)}:${two(second)}${where}`;
}

/** The time of day, with the date unless it is today. */
export function clock(at: number, seconds = false): string {
  const [year, month, day, hour, minute, second] = fields(at);
  const [thisYear, thisMonth, today] = fields(storeTime());
  const time = `${two(hour)}:${two(minute)}${seconds ? `:${two(second)}` : ""}`;
  if (year === thisYear && month === thisMonth && day === today) return time;
  return year === thisYear ? `${two(month)}-${two(day)} ${time}` : `${year}-${two(month)}-${two(day)}`;
}

export function precise(at: number): string {
  const [, , , hour, minute, second, milli] = fields(at);
  return `${two(hour)}:${two(minute)}:${two(second)}.${String(milli).padStart(3, "0")}`;
}

export function bytes(size: number): string {
  if (size < 1000) return `${size} B`;
  if (size < 1e6) return `${(size / 1e3).toFixed(size < 1e4 ? 1 : 0)} kB`;
  return `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB`;
}

export function usd(amount: number): string {
  return `$${amount < 0.01 && amount > 0 ? amount.toFixed(4) : amount.toFixed(2)}`;
}

const GROUPED = new Intl.NumberFormat("en-US");
export const count = (value: number): string => GROUPED.format(value);

/** A number that fits into a small place: 950, 12.3k, 4.5M. */
export function compact(value: number): string {
  if (Math.abs(value) < 1000) return Number.isInteger(value) ? String(value) : value.toPrecision(3).replace(/\.?0+$/, "");
  if (Math.abs(value) < 1e6) return `${(value / 1e3).toFixed(1).replace(/\.0$/, "")}k`;
  return `${(value / 1e6).toFixed(1).replace(/\.0$/, "")}M`;
}

export const plural = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;

/** "18e8…9ac1" */
export const shortId = (id: string): string =>
  id.length > 13 ? `${id.slice(0, 4)}…${id.slice(-4)}` : id;
