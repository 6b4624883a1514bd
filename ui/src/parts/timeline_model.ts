// From a journal and its attempts to bars on one scale of time; no drawing here.
import type { Attempt, Entry, JobRow } from "../api";

export type Texture = "queue" | "work" | "backoff" | "sleep" | "people" | "child";

export interface Segment {
  texture: Texture;
  from: number;
  to: number;
  state: string;
  text: string;
}

export interface Row {
  id: string;
  label: string;
  kind: string;
  state: string;
  count: number;
  attempt: number;
  from: number;
  to: number;
  segments: Segment[];
}

export interface Model {
  from: number;
  to: number;
  rows: Row[];
}

const OPEN = new Set(["PENDING", "RUNNING", "COMPENSATING"]);

/** One row for each entry of the journal, in its order, after the wait in the queue. */
export function modelOf(job: JobRow, entries: Entry[], attempts: Attempt[], now: number): Model {
  const end = job.ended_at ?? Math.max(now, job.created_at);
  const byStep = new Map<string, Attempt[]>();
  for (const attempt of attempts) {
    const known = byStep.get(attempt.step);
    if (known) known.push(attempt);
    else byStep.set(attempt.step, [attempt]);
  }
  const rows: Row[] = [];
  const started = job.started_at ?? end;
  if (started - job.created_at > 0.0005) rows.push(rowOf("queue", "in the queue", "queue", job.started_at === null ? "PENDING" : "COMPLETED", 0, [
    { texture: "queue", from: job.created_at, to: started, state: "PENDING", text: "waited for a worker" },
  ]));
  for (const entry of entries) {
    const segments = segmentsOf(entry, byStep.get(entry.id) ?? [], end, job);
    if (segments.length > 0) rows.push(rowOf(entry.id, entry.id, entry.kind, entry.state, entry.attempt ?? 0, segments));
  }
  let to = end;
  for (const row of rows) if (row.to > to) to = row.to;
  return { from: job.created_at, to: Math.max(to, job.created_at + 0.001), rows };
}

function rowOf(id: string, label: string, kind: string, state: string, attempt: number, segments: Segment[]): Row {
  let from = Number.POSITIVE_INFINITY;
  let to = Number.NEGATIVE_INFINITY;
  for (const segment of segments) {
    if (segment.from < from) from = segment.from;
    if (segment.to > to) to = segment.to;
  }
  return { id, label, kind, state, count: 1, attempt, from, to, segments };
}

const WAITS: Record<string, Texture> = { sleep: "sleep", approve: "people", receive: "people", child: "child" };

// While a job is in one of these states, a step that is not over waits for a person.
const FOR_PEOPLE = ["waiting_for_approval", "needs_attention", "paused"];

function segmentsOf(entry: Entry, attempts: Attempt[], end: number, job: JobRow): Segment[] {
  const live = job.ended_at === null;
  const from = entry.started_at ?? null;
  if (from === null || entry.kind === "value") return [];
  const open = OPEN.has(entry.state) && live;
  const to = Math.max(from, entry.ended_at ?? (open ? end : from));
  const texture = WAITS[entry.kind];
  const segments: Segment[] = [];
  if (entry.queued_for) segments.push({ texture: "queue", from: from - entry.queued_for, to: from, state: "PENDING", text: "in the queue" });
  if (texture) {
    segments.push({ texture, from, to, state: entry.state, text: texture === "people" ? "waits for people" : entry.kind });
    return segments;
  }
  if (open && entry.state === "PENDING" && FOR_PEOPLE.includes(job.shown_state)) {
    segments.push({ texture: "people", from, to, state: entry.state, text: "waits for people" });
    return segments;
  }
  const known = attempts.filter((each) => each.started_at !== null);
  if (known.length === 0) {
    const waits = entry.state === "PENDING" && (entry.wake_at ?? null) !== null;
    segments.push({ texture: "work", from, to: waits ? from : to, state: entry.kind === "undo" && entry.state === "SUCCEEDED" ? "UNDONE" : entry.state, text: `attempt ${entry.attempt || 1}` });
    if (waits) segments.push({ texture: "backoff", from, to: end, state: "RETRYING", text: "back-off" });
    return segments;
  }
  for (const [index, each] of known.entries()) {
    const begun = each.started_at ?? from;
    const next = known[index + 1]?.started_at;
    const ended = each.ended_at ?? (next ?? to);
    const failed = each.error !== null || /fail|retr|lost|expired/i.test(each.outcome);
    segments.push({ texture: "work", from: begun, to: Math.max(begun, ended), state: failed ? "FAILED" : entry.state, text: `attempt ${each.attempt}: ${each.outcome}` });
    const until = next ?? (each.backoff_until !== null && open ? Math.max(end, ended) : null);
    if (until !== null && until - ended > 0.0005) segments.push({ texture: "backoff", from: ended, to: until, state: "RETRYING", text: `back-off before attempt ${each.attempt + 1}` });
  }
  return segments;
}

const WORST = ["FAILED", "COMPENSATION_FAILED", "RUNNING", "COMPENSATING", "PENDING", "COMPENSATED", "SKIPPED", "SUCCEEDED"];

/** One row for each step, with all its calls in it. */
export function grouped(rows: Row[]): Row[] {
  const groups = new Map<string, Row>();
  for (const row of rows) {
    const name = row.kind === "queue" ? row.label : row.id.replace(/#\d+$/, "");
    const key = `${row.kind}:${name}`;
    const group = groups.get(key);
    if (!group) {
      groups.set(key, { ...row, segments: [...row.segments] });
      continue;
    }
    group.label = name;
    group.count++;
    group.attempt = Math.max(group.attempt, row.attempt);
    group.from = Math.min(group.from, row.from);
    group.to = Math.max(group.to, row.to);
    for (const segment of row.segments) group.segments.push(segment);
    if (WORST.indexOf(row.state) < WORST.indexOf(group.state)) group.state = row.state;
  }
  return [...groups.values()];
}

/** The chain of rows that made the job as long as it is, from its end back to its start. */
export function criticalPath(rows: Row[]): Row[] {
  const byEnd = rows.filter((row) => row.segments.length > 0).sort((a, b) => a.to - b.to || a.from - b.from);
  const chain: Row[] = [];
  let until = Number.POSITIVE_INFINITY;
  for (let index = byEnd.length - 1; index >= 0; index--) {
    const row = byEnd[index];
    if (!row || row.to > until + 0.002) continue;
    chain.push(row);
    until = row.from;
  }
  return chain.reverse();
}

/** The segments in sight, as shares of the width; those that fall on the same pixels are one. */
export interface Bar {
  texture: Texture;
  state: string;
  left: number;
  width: number;
  text: string;
  count: number;
}

export function barsOf(segments: Segment[], from: number, to: number, pixels: number): Bar[] {
  const span = to - from || 1;
  const bars: Bar[] = [];
  const last = new Map<string, Bar>();
  for (const segment of segments) {
    if (segment.to < from || segment.from > to) continue;
    const left = Math.max(0, (segment.from - from) / span);
    const right = Math.min(1, (segment.to - from) / span);
    const width = Math.max(right - left, 2 / pixels);
    const key = `${segment.texture}:${segment.state}`;
    const before = last.get(key);
    if (before && left <= before.left + before.width + 1 / pixels && left >= before.left && segments.length > 12) {
      before.width = Math.max(before.width, left + width - before.left);
      before.count++;
      continue;
    }
    const bar = { texture: segment.texture, state: segment.state, left, width, text: segment.text, count: 1 };
    bars.push(bar);
    last.set(key, bar);
  }
  return bars;
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Round times for the scale, in seconds after its start. */
export function ticks(from: number, to: number, most: number): number[] {
  const span = to - from;
  let step = STEPS.find((each) => span / each <= most) ?? Math.ceil(span / most / 604800) * 604800;
  if (span / most < 1) {
    const power = 10 ** Math.floor(Math.log10(span / most));
    step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= most) ?? power * 10;
  }
  const marks: number[] = [];
  for (let mark = Math.ceil(from / step - 1e-9) * step; mark <= to + step * 1e-6; mark += step) marks.push(mark);
  return marks;
}
