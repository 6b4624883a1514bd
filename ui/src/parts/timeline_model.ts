// From a journal and its attempts to bars on one scale of time; no drawing here.
import type { Entry, JobRow, Span, Spans } from "../api";

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

/** The id of a step without the mark of closures, and without the id of a run of a framework. */
export const unwrapped = (id: string): string => id.replace(/^call:/, "").replace(/#[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.?/, "#");

const OPEN = new Set(["PENDING", "RUNNING", "COMPENSATING"]);

/** One row for each entry of the journal, in its order, after the waits in the queue. */
export function modelOf(job: JobRow, entries: Entry[], known: Spans | null, now: number): Model {
  const end = job.ended_at ?? Math.max(now, job.created_at);
  const told = new Map((known?.entries ?? []).map((each) => [each.seq, each.spans]));
  const rows: Row[] = [];
  const waits = queueSegments(job, known, end);
  if (waits.length > 0) rows.push(rowOf("queue", "in the queue", "queue", "PENDING", 0, waits));
  for (const entry of entries) {
    if (entry.kind === "value") continue;
    const spans = told.get(entry.seq);
    const segments = spans ? spans.map((span, index) => segmentOf(entry, span, spans[index + 1], end)) : plainSegments(entry, job, end);
    if (segments.length > 0) rows.push(rowOf(entry.id, unwrapped(entry.id), entry.kind, entry.state, entry.attempt ?? 0, segments));
  }
  let to = end;
  for (const row of rows) if (row.to > to) to = row.to;
  return { from: job.created_at, to: Math.max(to, job.created_at + 0.001), rows };
}

function queueSegments(job: JobRow, known: Spans | null, end: number): Segment[] {
  const spans = known?.queue ?? [{ start: job.created_at, end: job.started_at }];
  return spans
    .map((span) => ({ texture: "queue" as const, from: span.start, to: span.end ?? end, state: "PENDING", text: "waited for a worker" }))
    .filter((segment) => segment.to - segment.from > 0.0005);
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

const TEXTURES: Record<Span["kind"], Texture> = { queue: "queue", work: "work", backoff: "backoff", approval: "people", sleep: "sleep", message: "people", child: "child" };
const WORDS: Record<Span["kind"], string> = { queue: "in the queue", work: "works", backoff: "back-off", approval: "waits for people", sleep: "sleeps", message: "waits for a message", child: "waits for a child" };

function segmentOf(entry: Entry, span: Span, next: Span | undefined, end: number): Segment {
  const failed = span.kind === "work" && next !== undefined; // what came after it is another attempt
  const text = span.attempt ? `attempt ${span.attempt}` : WORDS[span.kind];
  // A back-off that a person has cut short ends where the next attempt begins.
  const until = Math.min(span.end ?? end, span.kind === "backoff" ? (next?.start ?? end) : Number.POSITIVE_INFINITY);
  return { texture: TEXTURES[span.kind], from: span.start, to: Math.max(span.start, until), state: failed ? "FAILED" : workState(entry), text };
}

const workState = (entry: Entry): string => (entry.kind === "undo" && entry.state === "SUCCEEDED" ? "UNDONE" : entry.state);

const WAITS: Record<string, Texture> = { sleep: "sleep", approve: "people", receive: "people", child: "child" };
// While a job is in one of these states, a step that is not over waits for a person.
const FOR_PEOPLE = ["waiting_for_approval", "needs_attention", "paused"];

/** Those of an entry of which the journal tells all. */
function plainSegments(entry: Entry, job: JobRow, end: number): Segment[] {
  const from = entry.started_at ?? null;
  if (from === null) return [];
  const open = OPEN.has(entry.state) && job.ended_at === null;
  const to = Math.max(from, entry.ended_at ?? (open ? end : from));
  const parked = open && entry.state === "PENDING" && FOR_PEOPLE.includes(job.shown_state);
  const texture = WAITS[entry.kind] ?? (parked ? "people" : "work");
  return [{ texture, from, to, state: workState(entry), text: texture === "people" ? "waits for people" : entry.kind }];
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
    group.label = unwrapped(name);
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
