// Jobs: what needs me?
import { useEffect, useState } from "preact/hooks";

import { ask, type JobRow, may, type Page, part, post, type Problem, type SavedView } from "../api";
import { compact, count, duration, now, plural, relative, shortId, took, usd } from "../format";
import { useKeys } from "../keys";
import { useRead } from "../live";
import { Ago, announce, Ask, At, Choice, Dialog, Empty, Labels, Loading, Menu, Meter, toast, Trouble, useTitle } from "../parts/basics";
import { useNarrow } from "../parts/narrow";
import { QueryBox } from "../parts/query_box";
import { VirtualRows } from "../parts/virtual";
import { go, Link, query, setQuery } from "../router";
import { summary } from "../shell";
import { JOB_STATES, look, State } from "../status";
import { useJobList } from "./jobs_list";

const STATE_TERM = /(^|\s)-?state:\S+/g;
const withoutState = (q: string): string => q.replace(STATE_TERM, " ").replace(/\s+/g, " ").trim();
const statesOf = (q: string): string[] => [...q.matchAll(/(?:^|\s)state:(\S+)/g)].flatMap((each) => (each[1] ?? "").toUpperCase().split(","));
const GROUPS: Record<string, string[]> = { ATTENTION: ["NEEDS_ATTENTION"] };

const LESSON = `from perdure import App

app = App("sqlite:///jobs.db")

@app.step
async def load(page: int) -> int:
    return page * 100

@app.job
async def migrate(pages: int) -> int:
    return sum([await load(page) for page in range(pages)])

app.run_sync(migrate(8), key="my first migration")`;

export function JobsPage() {
  useTitle("Jobs");
  const q = query.value.get("q") ?? "";
  const list = useJobList(q);
  const counts = useRead<{ counts: Record<string, number> }>(`jobs/counts${withoutState(q) ? `?q=${part(withoutState(q))}` : ""}`, { topics: ["jobs"], gap: 3000 });
  const [at, setAt] = useState(-1);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [bulk, setBulk] = useState<string | null>(null);
  const narrow = useNarrow();
  useEffect(() => {
    setAt(-1);
    setChosen(new Set());
  }, [q]);
  useEffect(() => {
    if (list.fresh.length > 0) announce(`${list.fresh.length} new jobs`);
  }, [list.fresh.length]);
  const change = (text: string) => setQuery({ q: text || null });
  const toggle = (id: string | undefined) => {
    if (!id) return;
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const row = list.rows[at];
  const [one, other, third] = [...chosen];
  const compare = one && other && !third ? () => go(`/compare?a=${part(one)}&b=${part(other)}`) : null;
  useKeys("Jobs", {
    j: ["Next job", () => setAt(Math.min(at + 1, list.rows.length - 1))],
    k: ["Previous job", () => setAt(Math.max(at - 1, 0))],
    o: ["Open the job", () => row && go(`/jobs/${row.id}`)],
    Enter: ["Open the job", () => row && go(`/jobs/${row.id}`)],
    x: ["Select the job", () => toggle(row?.id)],
    c: ["Compare the two selected jobs", () => compare?.()],
    "g n": ["Show new jobs", list.showFresh],
    "g g": ["Go to the top", () => { scrollTo(0, 0); setAt(0); }],
  });
  const needed = summary.value?.unserved ?? [];
  const empty = !list.loading && list.rows.length === 0 && !list.problem;
  return (
    <div class="jobs">
      <h1 class="sr">Jobs</h1>
      <div class="jobs-top">
        <QueryBox value={q} change={change} />
        <Views q={q} change={change} />
      </div>
      {!(empty && !q) && <Chips counts={counts.data?.counts ?? {}} q={q} change={change} />}
      {needed.map((each) => <div key={each} class="notice"><span class="tone-retrying" aria-hidden="true">!</span> {each}</div>)}
      {list.problem && <Trouble problem={list.problem} again={list.again} />}
      {chosen.size > 0 && <SelectionBar count={chosen.size} compare={compare} clear={() => setChosen(new Set())} bulk={setBulk} all={q} />}
      {list.fresh.length > 0 && <button class="fresh" onClick={list.showFresh}>{count(list.fresh.length)} new</button>}
      {list.loading && list.rows.length === 0 && <Loading rows={12} />}
      {empty && (q ? <Empty title="No job matches">Nothing is found by <code>{q}</code>. <button class="link" onClick={() => change("")}>Show all jobs</button></Empty>
        : <Empty title="No jobs yet" code={LESSON}>A job is a Python function whose steps are stored. Submit one, and it appears here by itself.</Empty>)}
      {list.rows.length > 0 && (
        <div class="rows" role="table" aria-label="Jobs" aria-rowcount={-1}>
          {!narrow && <Heads />}
          <VirtualRows label="Jobs" role="rowgroup" count={list.rows.length} height={narrow ? 60 : 36} end={list.more} focus={at}
            row={(index) => {
              const each = list.rows[index];
              return each && <Row key={each.id} row={each} active={index === at} chosen={chosen.has(each.id)} toggle={() => toggle(each.id)} narrow={narrow} change={(term) => change(`${q} ${term}`.trim())} />;
            }} />
        </div>
      )}
      {list.rows.length > 0 && <p class="list-end muted">{list.next ? "Loading more…" : `${plural(list.rows.length, "job")}, the oldest ${relative(list.rows.at(-1)?.created_at ?? 0, now.value)}`}</p>}
      {bulk && <Bulk action={bulk} ids={[...chosen]} q={q} close={() => setBulk(null)} done={() => setChosen(new Set())} />}
    </div>
  );
}

function Chips({ counts, q, change }: { counts: Record<string, number>; q: string; change: (q: string) => void }) {
  const active = statesOf(q).flatMap((each) => GROUPS[each] ?? [each]);
  const rest = withoutState(q);
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const shown = ["STUCK", ...JOB_STATES].filter((state) => (counts[state] ?? 0) > 0 || active.includes(state));
  return (
    <div class="chips" role="group" aria-label="States">
      <button class="chip" aria-pressed={active.length === 0} onClick={() => change(rest)}><span class="num">{count(total)}</span> all</button>
      {shown.map((state) => {
        const { glyph, word, tone } = look(state);
        const on = active.includes(state);
        const others = active.filter((each) => each !== state && each !== "STUCK"); // which stands alone
        return (
          <button key={state} class="chip" aria-pressed={on}
            onClick={(event) => {
              const wanted = event.shiftKey || event.metaKey || event.ctrlKey ? (on ? others : [...others, state]) : on ? [] : [state];
              change(`${wanted.length > 0 ? `state:${wanted.join(",").toLowerCase()} ` : ""}${rest}`.trim());
            }}>
            <span class={`glyph tone-${tone}`} aria-hidden="true">{glyph}</span>
            {state in counts && <span class="num">{count(counts[state] ?? 0)} </span>}{state === "NEEDS_ATTENTION" ? "need you" : word}
          </button>
        );
      })}
    </div>
  );
}

function Views({ q, change }: { q: string; change: (q: string) => void }) {
  const read = useRead<Page<SavedView>>("views");
  const [saving, setSaving] = useState(false);
  const [name, setName] = useState("");
  const views = read.data?.items ?? [];
  const own = views.some((view) => view.query === q);
  return (
    <div class="views">
      {views.slice(0, 6).map((view) => <button key={view.name} class="view" aria-pressed={view.query === q} title={view.query} onClick={() => change(view.query)}>{view.name}</button>)}
      {may("views.write") && q && !own && <button class="view add" onClick={() => setSaving(true)}>Save view</button>}
      {may("views.write") && own && (
        <button class="view add" onClick={() => void ask("DELETE", `views/${part(views.find((view) => view.query === q)?.name ?? "")}`).then(read.again, (problem: Problem) => toast(problem.message, true))}>Forget view</button>
      )}
      {saving && (
        <Ask title="Save this view" verb="Save" reason={null} disabled={!name.trim()} close={() => setSaving(false)}
          run={async () => {
            await ask("PUT", `views/${part(name.trim())}`, { query: q });
            read.again();
            toast(`Saved ${name.trim()}`);
          }}>
          <p>Everybody of your tenant sees it beside the query.</p>
          <div class="field"><label for="view-name">Name</label><input id="view-name" maxLength={60} value={name} onInput={(event) => setName(event.currentTarget.value)} /></div>
          <p class="mono muted">{q}</p>
        </Ask>
      )}
    </div>
  );
}

function Heads() {
  return (
    <div class="row heads" role="row">
      <span role="columnheader"><span class="sr">Selected</span></span>
      <span role="columnheader">State</span>
      <span role="columnheader">Job</span>
      <span role="columnheader">Queue</span>
      <span role="columnheader">Now</span>
      <span role="columnheader" class="num">Progress</span>
      <span role="columnheader" class="num">Cost</span>
      <span role="columnheader" class="num">Time</span>
      <span role="columnheader">Id</span>
      <span role="columnheader" class="num">Submitted</span>
    </div>
  );
}

interface RowProps {
  row: JobRow;
  active: boolean;
  chosen: boolean;
  narrow: boolean;
  toggle: () => void;
  change: (term: string) => void;
}

function Row({ row, active, chosen, narrow, toggle, change }: RowProps) {
  const time = duration(took(row));
  const to = `/jobs/${row.id}`;
  const name = <Link to={to} class="row-name"><bdi class="clip">{row.name}</bdi>{row.key && <bdi class="clip muted key">{row.key}</bdi>}</Link>;
  if (narrow) {
    return (
      <div class={`card-row${active ? " active" : ""}`} role="row">
        <span role="cell" class="card-line"><State state={row.shown_state} word={false} />{name}<span class="spring" /><span class="num muted">{time}</span></span>
        <span role="cell" class="card-line muted small"><span class="card-word">{look(row.shown_state).word}</span><Now row={row} />{row.ended_at !== null && !row.error && <Ago at={row.ended_at} />}<span class="spring" /><Progress row={row} /></span>
      </div>
    );
  }
  return (
    <div class={`row${active ? " active" : ""}${chosen ? " chosen" : ""}`} role="row" aria-selected={chosen}
      onClick={(event) => {
        if ((event.target as HTMLElement).closest("a, button, input, label")) return;
        if (!getSelection()?.isCollapsed) return;
        go(to);
      }}>
      <span role="cell" class="check"><input type="checkbox" aria-label={`Select ${row.name} ${row.id.slice(-4)}`} checked={chosen} onChange={toggle} /></span>
      <span role="cell"><State state={row.shown_state} /></span>
      <span role="cell" class="job-cell">{name}<span class="row-labels"><Labels labels={row.labels} on={(label, value) => change(`label.${quoted(label)}:${quoted(value)}`)} /></span></span>
      <span role="cell" class="clip muted">{row.queue}</span>
      <span role="cell" class="now-cell"><Now row={row} /></span>
      <span role="cell" class="num"><Progress row={row} /></span>
      <span role="cell" class="num">{row.cost && (row.cost.usd ?? 0) > 0 ? usd(row.cost.usd ?? 0) : row.cost?.tokens ? <>{compact(row.cost.tokens)}<small> tok</small></> : <span class="muted">–</span>}</span>
      <span role="cell" class="num">{time}</span>
      <span role="cell" class="mono muted" title={row.id}>{shortId(row.id)}</span>
      <span role="cell" class="num muted"><At at={row.created_at} /></span>
    </div>
  );
}

const quoted = (text: string): string => (/^[\w.@/-]+$/.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`);

/** What a job does now, or why it does not go on. */
export function Now({ row }: { row: JobRow }) {
  const { current } = row;
  if (row.ended_at !== null && !row.error) return null;
  if (row.error && ["failed", "needs_attention", "cancelled"].includes(row.shown_state)) return <bdi class="clip" title={row.error}>{row.error.replace(/^(?:\w+\.)+(\w+: )/, "$1")}</bdi>;
  if (row.shown_state === "waiting_for_approval") return <span class="clip">{current && <span class="mono">{current.id}</span>} a person must decide</span>;
  if (row.shown_state === "retrying" && current) {
    const again = current.again_at ?? row.wakes_at;
    return <span class="clip"><span class="mono">{current.id}</span> attempt {current.attempt}{again ? <>, again {relative(again, now.value)}</> : null}</span>;
  }
  if (row.waits) return <bdi class="clip" title={row.waits}>{row.waits}{row.wakes_at ? `, ${relative(row.wakes_at, now.value)}` : ""}</bdi>;
  if (current) return <span class="clip"><span class="mono">{current.id}</span>{current.attempt > 1 && <span class="tone-retrying"> ↻{current.attempt}</span>}{row.progress[0]?.note && <bdi class="muted"> {row.progress[0].note}</bdi>}</span>;
  return null;
}

function Progress({ row }: { row: JobRow }) {
  const known = row.progress.find((each) => each.total);
  if (!known?.total || known.done === null) return null;
  const share = Math.floor((known.done / known.total) * 100);
  return <span class="progress"><Meter value={known.done} most={known.total} label={`${known.step}: ${share} %`} /><span class="num">{share}<small>%</small></span></span>;
}

const ACTIONS: [string, string, string][] = [
  ["cancel", "Cancel", "jobs.cancel"],
  ["pause", "Pause", "jobs.pause"],
  ["resume", "Resume", "jobs.resume"],
  ["retry", "Retry", "jobs.retry"],
];

function SelectionBar({ count: size, compare, clear, bulk, all }: { count: number; compare: (() => void) | null; clear: () => void; bulk: (action: string) => void; all: string }) {
  const allowed = ACTIONS.filter(([, , permission]) => may(permission));
  return (
    <div class="selection" role="region" aria-label="Selected jobs">
      <strong class="num">{plural(size, "job")} selected</strong>
      {allowed.map(([action, text]) => <button key={action} class="button small" onClick={() => bulk(action)}>{text}…</button>)}
      <Menu label="All jobs that match the query" items={allowed.map(([action, text]) => ({ text: `${text} all that match…`, hint: all || "every job", run: () => bulk(`${action}:all`) }))} />
      <button class="button small" disabled={!compare} title={compare ? "Side by side" : "Select two jobs to compare them"} onClick={() => compare?.()}>Compare <kbd>c</kbd></button>
      <span class="spring" />
      <button class="text-button" onClick={clear}>Clear</button>
    </div>
  );
}

interface Result {
  job_id: string;
  name: string;
  state: string;
  refused: string;
}

/** At most a thousand results, and how many there are. */
interface BulkAnswer {
  affected: number;
  refused: number;
  results: Result[];
}

interface BulkProps {
  action: string;
  ids: string[];
  q: string;
  close: () => void;
  done: () => void;
}

/** A command to many jobs: first what it would do, then what it did. */
function Bulk({ action: given, ids, q, close, done }: BulkProps) {
  const [action = "", scope] = given.split(":");
  const verb = action[0]?.toUpperCase() + action.slice(1);
  const whole = scope === "all";
  const [plan, setPlan] = useState<Result[] | null>(null);
  const [sizes, setSizes] = useState<[number, number] | null>(null); // of a plan that is cut
  const [problem, setProblem] = useState<Problem | null>(null);
  const [report, setReport] = useState<Result[] | null>(null);
  const [which, setWhich] = useState<"will" | "refuse">("will");
  const meant = whole ? { q } : { ids };
  useEffect(() => {
    post<BulkAnswer>("jobs/bulk", { action, ...meant, reason: "", dry_run: true }).then((answer) => {
      setPlan(answer.results);
      setSizes([answer.affected, answer.refused]);
    }, setProblem);
  }, []);
  const will = plan?.filter((each) => !each.refused) ?? [];
  const refuse = plan?.filter((each) => each.refused) ?? [];
  const [willCount, refuseCount] = sizes ?? [will.length, refuse.length];
  const run = async (reason: string) => {
    const answer = await post<BulkAnswer>("jobs/bulk", { action, ...meant, reason, dry_run: false });
    setReport(answer.results);
    setSizes([answer.affected, answer.refused]);
    return "stay" as const;
  };
  if (report) {
    const refused = report.filter((each) => each.refused);
    const [doneCount, refusedCount] = sizes ?? [report.length - refused.length, refused.length];
    return (
      <Dialog title={`${verb}: ${count(doneCount)} done${refusedCount > 0 ? `, ${count(refusedCount)} refused` : ""}`} close={() => { close(); done(); }}>
        <div class="dialog-content"><Results results={refused.length > 0 ? refused : report} /></div>
        <footer><button class="button primary" onClick={() => { close(); done(); }}>Close</button></footer>
      </Dialog>
    );
  }
  return (
    <Ask title={whole ? `${verb} all jobs that match` : `${verb} ${plural(ids.length, "job")}`} verb={`${verb} ${plural(willCount, "job")}`} danger={action === "cancel"} disabled={will.length === 0} run={run} close={close}>
      {whole && <p>The query: <code>{q || "every job"}</code></p>}
      {problem && <Trouble problem={problem} />}
      {plan === null && !problem && <p class="muted">Trying it out, without doing it…</p>}
      {plan && (
        <>
          {refuse.length > 0 && <Choice label="Which jobs" options={[["will", `${count(willCount)} will`], ["refuse", `${count(refuseCount)} will not`]]} value={which} choose={setWhich} />}
          <Results results={which === "will" ? will : refuse} />
        </>
      )}
    </Ask>
  );
}

function Results({ results }: { results: Result[] }) {
  return (
    <VirtualRows label="Jobs" count={results.length} height={28} within={Math.max(30, Math.min(280, results.length * 28 + 2))}
      row={(index) => {
        const each = results[index];
        return each && (
          <div key={each.job_id} class="result">
            <State state={each.state} word={false} />
            <bdi class="clip">{each.name}</bdi>
            <span class="mono muted">{shortId(each.job_id)}</span>
            <span class="clip muted">{each.refused}</span>
          </div>
        );
      }} />
  );
}

