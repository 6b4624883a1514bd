// The list of jobs: pages by cursor, changes in place, new ones held back while somebody reads.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { get, type JobRow, type Page, Problem } from "../api";
import { useCalm, useLive } from "../live";

const PAGE = 100;

interface State {
  q: string;
  rows: JobRow[];
  next: string | null;
  loading: boolean;
  problem: Problem | null;
  /** Rows that came since, not yet shown. */
  fresh: JobRow[];
}

const EMPTY: State = { q: "", rows: [], next: null, loading: true, problem: null, fresh: [] };

export interface JobList extends State {
  more: () => void;
  showFresh: () => void;
  again: () => void;
}

export function useJobList(q: string): JobList {
  const [state, setState] = useState<State>(EMPTY);
  const current = useRef(state);
  current.current = state;
  const wanted = useRef(q);
  wanted.current = q;
  const busy = useRef(false);

  const load = useCallback(() => {
    setState((old) => ({ ...(old.q === q ? old : { ...EMPTY, rows: [] }), q, loading: true }));
    get<Page<JobRow>>("jobs", { q, limit: PAGE }).then(
      (page) => {
        if (wanted.current === q) setState({ q, rows: page.items, next: page.next, loading: false, problem: null, fresh: [] });
      },
      (problem: Problem) => {
        if (wanted.current === q) setState((old) => ({ ...old, loading: false, problem }));
      },
    );
  }, [q]);
  useEffect(load, [load]);

  const more = useCallback(() => {
    const { next, loading } = current.current;
    if (next === null || loading || busy.current || current.current.q !== q) return;
    busy.current = true;
    get<Page<JobRow>>("jobs", { q, limit: PAGE, cursor: next }).then(
      (page) => {
        if (wanted.current !== q) return;
        setState((old) => {
          const known = new Set(old.rows.map((row) => row.id));
          return { ...old, rows: [...old.rows, ...page.items.filter((row) => !known.has(row.id))], next: page.next };
        });
      },
      (problem: Problem) => setState((old) => ({ ...old, problem })),
    ).finally(() => {
      busy.current = false;
    });
  }, [q]);

  /** Reads the first page again: known rows change in place, others wait or go to the top. */
  const refresh = useCalm(() => {
    get<Page<JobRow>>("jobs", { q, limit: PAGE }).then((page) => {
      if (wanted.current !== q) return;
      setState((old) => merged(old, page, scrollY < 80));
    }, () => {});
  }, 1500);

  useLive(["jobs"], (event, data) => {
    if (event !== "jobs" && event !== "stale") return;
    const rows = rowsIn(data);
    const known = new Map(rows.map((row) => [row.id, row]));
    if (known.size > 0) {
      setState((old) => ({ ...old, rows: old.rows.map((row) => known.get(row.id) ?? row) }));
    }
    const shown = new Set(current.current.rows.map((row) => row.id));
    if (rows.length === 0 || rows.some((row) => !shown.has(row.id)) || q) refresh();
  });

  const showFresh = useCallback(() => {
    setState((old) => ({ ...old, rows: [...old.fresh, ...old.rows], fresh: [] }));
    scrollTo(0, 0);
  }, []);
  return { ...state, more, showFresh, again: load };
}

function rowsIn(data: unknown): JobRow[] {
  const list = Array.isArray(data) ? data : data && typeof data === "object" && "items" in data ? (data as { items: unknown }).items : [];
  return Array.isArray(list) ? list.filter((row): row is JobRow => row && typeof row === "object" && "shown_state" in row) : [];
}

function merged(old: State, page: Page<JobRow>, atTop: boolean): State {
  const latest = new Map(page.items.map((row) => [row.id, row]));
  const shown = new Set(old.rows.map((row) => row.id));
  const unseen = page.items.filter((row) => !shown.has(row.id));
  // Only what is newer than the first row is new; a row further down came into the query.
  const newest = old.rows[0]?.created_at ?? 0;
  const fresh = unseen.filter((row) => row.created_at >= newest);
  const rows = old.rows.map((row) => latest.get(row.id) ?? row);
  if (old.rows.length <= page.items.length && atTop) return { ...old, rows: page.items, next: page.next, problem: null, fresh: [] };
  if (atTop) return { ...old, rows: [...fresh, ...rows], problem: null, fresh: [] };
  return { ...old, rows, problem: null, fresh };
}
