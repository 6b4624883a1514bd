// The HTTP API as this page uses it: its types, and one function to ask it.
import { signal } from "@preact/signals";

import { base, url } from "./base";
import { learnTime } from "./format";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A payload that is too large to be sent with the rest: its field is null, and this is in `large`, by its name. */
export interface Large {
  bytes: number;
  preview: string;
  href: string | null;
}

export interface Page<T> {
  items: T[];
  next: string | null;
  now?: number;
}

export interface Principal {
  id: string;
  name: string;
  kind: "person" | "service";
  tenant: string | null;
  tenants: string[];
  roles: string[];
  permissions: string[];
  signed_in_at: number | null;
}

export interface Session {
  principal: Principal;
  csrf: string | null;
  version: string;
  store: string;
}

export interface Summary {
  counts: Record<string, number>;
  approvals: number;
  in_doubt: number;
  workers: number;
  stale_workers: number;
  unserved: string[];
  now: number;
}

export interface Progress {
  step: string;
  done: number | null;
  total: number | null;
  note: string;
  at: number | null;
}

export interface Cost {
  usd?: number | null;
  tokens?: number | null;
  limit_usd?: number | null;
  limit_tokens?: number | null;
  shared?: boolean;
}

export interface JobRow {
  id: string;
  name: string;
  version: string;
  key: string | null;
  tenant: string;
  user: string;
  state: string;
  shown_state: string;
  queue: string;
  priority: number;
  labels: Record<string, string>;
  created_at: number;
  started_at: number | null;
  ended_at: number | null;
  worked: number;
  took: number | null;
  owner: string | null;
  heartbeat_at: number | null;
  parent: string | null;
  current: { id: string; attempt: number; state: string; again_at: number | null } | null;
  progress: Progress[];
  waits: string | null;
  wakes_at: number | null;
  error: string | null;
  cost: Cost | null;
  effects_in_doubt: number;
  undone: boolean;
  failed_undos: number;
}

export interface Failure {
  type: string;
  message: string;
  trace?: string;
  attempt?: number;
  permanent?: boolean;
  step?: string;
  standing?: string[];
  summary?: string;
}

export interface Budget {
  job: string;
  limits: Record<string, number | null>;
  spent: Record<string, number>;
  reserved: Record<string, number>;
  by_others: Record<string, number>;
  began_at: number;
}

export interface Topic {
  topic: string;
  pieces: number;
  bytes: number;
  last: number;
  dropped: number;
}

export interface Piece {
  position: number;
  kind: string;
  step: string;
  attempt: number;
  at: number;
  value: Json;
  discards: number | null;
}

export interface JobDetail extends JobRow {
  input: Json;
  result: Json;
  large: Record<string, Large>;
  failure: Failure | null;
  wait: Json;
  request: string | null;
  deadline_at: number | null;
  due_at: number | null;
  forked_from: string | null;
  is_plan: boolean;
  calls: Json;
  children: number;
  entries: number;
  topics: Topic[];
  budget: Budget | null;
  unserved: string | null;
  allowed: string[];
}

/** What is empty is left out. */
export interface Entry {
  seq: number;
  id: string;
  kind: string;
  name: string;
  state: string;
  attempt?: number;
  started_at?: number | null;
  ended_at?: number | null;
  wake_at?: number | null;
  queued_for?: number | null;
  input?: Json;
  output?: Json;
  error?: Failure | null;
  checkpoint?: Json;
  checkpoint_no?: number;
  large?: Record<string, Large>;
}

export interface Span {
  kind: "queue" | "work" | "backoff" | "approval" | "sleep" | "message" | "child";
  start: number;
  end: number | null;
  attempt: number | null;
}

/** When a job was ready without a worker, and what the journal alone does not tell. */
export interface Spans {
  queue: Span[];
  entries: { id: string; seq: number; spans: Span[] }[];
}

export interface Attempt {
  step: string;
  attempt: number;
  started_at: number | null;
  ended_at: number | null;
  outcome: string;
  error: Failure | string | null;
  worker: string | null;
  version: string | null;
  backoff_until: number | null;
}

export interface Effect {
  job: string;
  no: number;
  tenant: string;
  kind: string;
  target: string;
  state: string;
  step: string;
  key: string;
  generation: number;
  in_doubt: string;
  details: Json;
  result: Json;
  problem: string | null;
  error: Failure | null;
  undo: string | null;
  stays: boolean;
  proof: string;
  called_at: number;
  ended_at: number | null;
}

export interface JobEvent {
  no: number;
  type: string;
  data: Record<string, Json>;
  actor: string;
  at: number;
}

export interface Approval {
  id: string;
  tenant: string;
  job: string;
  step: string;
  title: string;
  description: string;
  written_by_program: boolean;
  action: { text: string; step: string; arguments: Json; version: string; revision: number; hash: string };
  risk: string;
  reasons: string[];
  requester: string;
  state: string;
  asked_at: number;
  expires_at: number | null;
  decided_at: number | null;
  edits: { person: string; at: number; before: Json; after: Json; raised: boolean }[];
  votes: { person: string; verdict: string; at: number; channel: string; reason: string; is_current: boolean }[];
  needed: number;
  approvers: string[];
  four_eyes: boolean;
  escalated: boolean;
  delegates: [string, string][];
  may_decide: { ok: boolean; code: string; why: string };
  needs_recent_sign_in: boolean;
  alone: boolean;
}

export interface Worker {
  id: string;
  host: string;
  pid: number;
  started_at: number;
  silent_for: number;
  queues: string[];
  concurrency: number;
  running: number;
  stale: boolean;
  draining: boolean;
  allow_kill: boolean;
  jobs: { name: string; versions: string[] }[] | null;
  steps: number;
}

export interface Queue {
  name: string;
  paused: boolean;
  ready: number;
  waiting: number;
  running: number;
}

export interface TreeNode {
  id: Json;
  kind: string;
  label: string;
  state: string;
  restarts: number;
  pid?: string | null;
  mailbox?: number;
  age?: number;
  awaits?: string | null;
  function?: string;
  names?: string[];
  links?: string[];
  monitors?: string[];
  monitored_by?: string[];
  stack?: string[];
  job?: string | null;
  step?: string | null;
  left_out?: number;
  children: TreeNode[];
}

export interface Schedule {
  name: string;
  cron: string;
  timezone: string;
  catch_up: string;
  paused: boolean;
  job: string;
  queue?: string;
  explained: string;
  next: number[];
  next_at: number | null;
  last_at: number | null;
}

export interface ErrorGroup {
  fingerprint: string;
  type: string;
  message: string;
  step: string;
  job_name: string;
  count: number;
  first_at: number;
  last_at: number;
  sample_job: string;
  state: "open" | "resolved" | "ignored";
  regressed?: boolean;
}

interface Backlog {
  count: number;
  oldest: number;
}

export interface Percentiles {
  count: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface Metrics {
  minutes: number;
  series: Record<string, [number, number][]>;
  gauges: {
    job_duration_seconds: Percentiles;
    job_duration_usual_p95: number | null;
    step_failure_rate: number;
    step_failure_worst: string | null;
    step_attempts_avg: number | null;
    step_attempts_worst: string | null;
    job_stuck_count: number;
    compensation_failure_count: number;
    side_effect_duplicate_count: number;
    checkpoint_size_bytes: number;
  };
  steps: { step: string; count: number; failed: number; attempts: number; largest_checkpoint: number }[];
  sampled_jobs: number;
  queues: { name: string; ready: number; oldest: number }[];
  approvals: Backlog;
  in_doubt: Backlog;
}

export interface SavedView {
  name: string;
  query: string;
}

export interface AuditEntry {
  tenant: string;
  no: number;
  at: number;
  actor: string;
  kind: string;
  action: string;
  target: string;
  data: Record<string, Json>;
  address: string;
  hash: string;
}

export interface Token {
  id: string;
  name: string;
  principal: string;
  kind: string;
  tenant: string | null;
  roles: string[];
  created_at: number;
  created_by: string;
  expires_at: number | null;
  revoked_at: number | null;
  last_used_at: number | null;
}

/** An answer that says why it is none. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly errors: string[] = [],
  ) {
    super(message);
  }
}

export const session = signal<Session | null>(null);
/** Whether the last request reached the server. */
export const reachable = signal(true);

export const may = (permission: string): boolean =>
  session.value?.principal.permissions.includes(permission) ?? false;

type Parameters = Record<string, string | number | null | undefined>;

export function address(path: string, parameters: Parameters = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return url(`api/v1/${path}`) + (text ? `?${text}` : "");
}

// When somebody last used this page. What it asks for by itself later is no sign of a person: a
// session goes idle beside a page that keeps itself up to date.
let usedAt = Date.now();
for (const event of ["keydown", "pointerdown", "pointermove", "wheel", "touchstart"]) {
  addEventListener(event, () => { usedAt = Date.now(); }, { passive: true, capture: true });
}
const ATTENDED = 60_000; // milliseconds
const unattended = (): boolean => Date.now() - usedAt > ATTENDED;

async function send(target: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    const headers = { ...(options.headers as Record<string, string> | undefined), ...(unattended() ? { "X-Unattended": "1" } : {}) };
    response = await fetch(target, { credentials: "same-origin", ...options, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    reachable.value = false;
    throw new Problem(0, "unreachable", "The server does not answer. Is it running?");
  }
  reachable.value = true;
  if (response.status === 401) signIn();
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response: Response): Promise<Problem> {
  try {
    const body = (await response.json()) as Record<string, unknown>;
    const errors = Array.isArray(body.errors) ? body.errors.map((each) => typeof each === "string" ? each : JSON.stringify(each)) : [];
    const text = body.detail ?? body.title ?? response.statusText;
    return new Problem(response.status, String(body.code ?? ""), String(text), errors);
  } catch {
    return new Problem(response.status, "", `${response.status} ${response.statusText}`);
  }
}

/** Leaves for the page on which to sign in, and comes back after it. */
export function signIn(again = false): void {
  const next = encodeURIComponent(`/${location.pathname.slice(base.length)}${location.search}`);
  location.assign(url(`login?next=${next}${again ? "&again=1" : ""}`));
}

export async function signOut(): Promise<void> {
  await send(url("logout"), { method: "POST", headers: { "X-CSRF-Token": session.value?.csrf ?? "" } });
  location.assign(url("login"));
}

/** Ends every session of this person, also this one. */
export async function signOutEverywhere(): Promise<void> {
  await ask("DELETE", "sessions");
  location.assign(url("login"));
}

export async function get<T>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<T> {
  const response = await send(address(path, parameters), { signal: signal ?? null, headers: { Accept: "application/json" } });
  const body = (await response.json()) as T;
  if (body !== null && typeof body === "object" && "now" in body) learnTime(body.now as number);
  return body;
}

export async function getText(href: string): Promise<string> {
  return (await send(href, {})).text();
}

/** A key by which a request that is sent again is known to be the same. */
export const newKey = (): string => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

export async function ask<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown, key?: string): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (session.value?.csrf) headers["X-CSRF-Token"] = session.value.csrf;
  if (method !== "DELETE" || body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = key ?? newKey();
  const content = method === "DELETE" && body === undefined ? null : JSON.stringify(body ?? {});
  const response = await send(address(path), { method, headers, body: content });
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
}

export const post = <T>(path: string, body?: unknown, key?: string): Promise<T> => ask<T>("POST", path, body, key);

export const part = encodeURIComponent;
