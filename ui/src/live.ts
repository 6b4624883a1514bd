// What changes on the server reaches the page: `useLive` for events, `useRead` for answers that are
// read again when something has changed. A tab in the background is quiet, and catches up.
import { signal } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { address, get, may, type Problem } from "./api";
import { url } from "./base";
import type { FromWorker } from "./live_messages";
import { LiveStream } from "./live_stream";

declare const LIVE_WORKER: string;

export const connection = signal<"open" | "connecting">("connecting");

type Listener = (event: string, data: unknown) => void;
const listeners = new Map<Listener, string[]>();
let follow: (topics: string[]) => void = () => {};
let lost = false;

function heard(message: FromWorker): void {
  if ("connection" in message) {
    const back = message.connection === "open" && lost;
    lost = message.connection !== "open";
    connection.value = message.connection;
    if (back) tell("stale", null);
    return;
  }
  let data: unknown;
  try {
    data = JSON.parse(message.data);
  } catch {
    data = message.data;
  }
  tell(message.event, data);
}

function tell(event: string, data: unknown): void {
  for (const listener of [...listeners.keys()]) listener(event, data);
}

/** Connects once: by the shared worker, or by a stream of this tab where there is none. */
export function startLive(): void {
  const events = address("events");
  try {
    const worker = new SharedWorker(url(`assets/${LIVE_WORKER}`), { name: "perdure", type: "module" });
    worker.port.onmessage = ({ data }: MessageEvent<FromWorker>) => heard(data);
    worker.onerror = () => direct(events);
    follow = (topics) => worker.port.postMessage({ topics, address: events });
    addEventListener("pagehide", () => worker.port.postMessage({ bye: true }));
    addEventListener("pageshow", refollow);
  } catch {
    direct(events);
  }
  refollow();
}

function direct(events: string): void {
  const stream = new LiveStream(heard);
  follow = (topics) => stream.follow(events, topics);
  refollow();
}

// A stream is refused as a whole if one of its topics is.
const NEEDS: Record<string, string> = { approvals: "approvals.read", workers: "workers.read" };

let planned = false;
function refollow(): void {
  if (planned) return;
  planned = true;
  queueMicrotask(() => {
    planned = false;
    follow([...new Set([...listeners.values()].flat())].filter((topic) => may(NEEDS[topic.split(":")[0] ?? ""] ?? "jobs.read")));
  });
}

/** Calls back for every event while the component is there. */
export function useLive(topics: string[], listener: Listener): void {
  const latest = useRef(listener);
  latest.current = listener;
  const key = topics.join(",");
  useEffect(() => {
    const own: Listener = (event, data) => latest.current(event, data);
    listeners.set(own, key ? key.split(",") : []);
    refollow();
    return () => {
      listeners.delete(own);
      refollow();
    };
  }, [key]);
}

/** Runs a task at most once in `gap` milliseconds, and never in a tab that nobody sees. */
export function useCalm(task: () => void, gap: number): () => void {
  const latest = useRef(task);
  latest.current = task;
  const state = useRef({ at: 0, timer: 0, missed: false });
  const ask = useCallback(() => {
    const mine = state.current;
    if (document.hidden) {
      mine.missed = true;
      return;
    }
    if (mine.timer) return;
    mine.timer = window.setTimeout(() => {
      mine.timer = 0;
      mine.at = Date.now();
      latest.current();
    }, Math.max(0, mine.at + gap - Date.now()));
  }, [gap]);
  useEffect(() => {
    const seen = () => {
      if (document.hidden || !state.current.missed) return;
      state.current.missed = false;
      ask();
    };
    document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(state.current.timer);
      state.current.timer = 0;
    };
  }, [ask]);
  return ask;
}

export interface Read<T> {
  data: T | null;
  problem: Problem | null;
  loading: boolean;
  again: () => void;
  put: (data: T) => void;
}

interface ReadOptions {
  /** Topics whose events mean that the answer may have changed. */
  topics?: string[];
  /** Whether an event is about this answer; every one, if it is not given. */
  concerns?: (event: string, data: unknown) => boolean;
  /** Seconds after which it is read again anyhow. */
  every?: number;
  gap?: number;
}

/** The answer to a GET, kept up to date; null as path: none is wanted now. */
export function useRead<T>(path: string | null, options: ReadOptions = {}): Read<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; problem: Problem | null }>({ path: null, data: null, problem: null });
  const running = useRef<AbortController | null>(null);
  const load = useCallback(() => {
    running.current?.abort();
    if (path === null) return;
    const mine = new AbortController();
    running.current = mine;
    get<T>(path, {}, mine.signal).then(
      (data) => {
        if (!mine.signal.aborted) setState({ path, data, problem: null });
      },
      (problem: Problem) => {
        if (!mine.signal.aborted) setState((old) => ({ path, data: old.path === path ? old.data : null, problem }));
      },
    );
  }, [path]);
  useEffect(() => {
    load();
    return () => running.current?.abort();
  }, [load]);
  const calm = useCalm(load, options.gap ?? 1000);
  useLive(options.topics ?? [], (event, data) => {
    if (!options.topics) return;
    if (event === "stale" || (options.concerns?.(event, data) ?? true)) calm();
  });
  useEffect(() => {
    if (!options.every) return;
    const timer = setInterval(calm, options.every * 1000);
    return () => clearInterval(timer);
  }, [options.every, calm]);
  const current = state.path === path;
  return {
    data: current ? state.data : null,
    problem: current ? state.problem : null,
    loading: !current,
    again: load,
    put: (data) => setState({ path, data, problem: null }),
  };
}
