// One job: what happened, and what happens next?
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { type Effect, type Entry, type Failure, type JobDetail, type JobEvent, type JobRow, get, may, type Page, part, type Problem, type Spans } from "../api";
import { count, duration, now, plural, relative, shortId, took, usd } from "../format";
import { useKeys } from "../keys";
import { useCalm, useLive, useRead } from "../live";
import { Ago, announce, Copy, Empty, Labels, Loading, Menu, Meter, Tabs, Trouble, useTitle } from "../parts/basics";
import { Payload } from "../parts/payload";
import { Log, Timeline } from "../parts/timeline";
import { go, Link, query, setQuery } from "../router";
import { look, State } from "../status";
import { plainName } from "./approvals";
import { EffectCard } from "./effects";
import { ActionDialog, ACTIONS } from "./job_actions";
import { JobTree } from "./job_tree";
import { Transcript, useHasTranscript } from "./transcript";
import { Attempts, BudgetTab, Effects, Journal, Output, Raw, Undo } from "./job_tabs";

type Tab = "transcript" | "journal" | "attempts" | "effects" | "undo" | "output" | "events" | "budget" | "children" | "raw";

export function JobPage({ id }: { id: string }) {
  const [known, setKnown] = useState("");
  const read = useRead<JobDetail>(`jobs/${part(id)}`, { topics: known ? [`job:${known}`] : ["jobs"], concerns: (_, data) => about(data, id), every: 15, gap: 800 });
  const job = read.data;
  useEffect(() => setKnown(job?.id ?? ""), [job?.id]); // the address may have only a part of the id
  useTitle(job ? `${job.name} ${job.key ?? shortId(job.id)}` : "Job");
  if (read.problem?.status === 404 && !job) return <Empty title="There is no such job">No job that you may see has the id <code>{id}</code>. It may have been deleted after its retention period. <Link to="/jobs">Show all jobs</Link></Empty>;
  if (read.problem && !job) return <Trouble problem={read.problem} again={read.again} />;
  if (!job) return <Loading />;
  return <Known job={job} changed={read.put} again={read.again} />;
}

/** Whether an event concerns a job. */
function about(data: unknown, id: string): boolean {
  if (data === null || typeof data !== "object") return true;
  return JSON.stringify(data).includes(id) || "stale" in data;
}

const SETTLED = ["completed", "failed", "cancelled", "compensated", "needs_attention"];

function Known({ job, changed, again }: { job: JobDetail; changed: (job: JobDetail) => void; again: () => void }) {
  const stamp = `${job.state} ${job.shown_state} ${job.entries} ${job.current?.id} ${job.current?.attempt} ${job.ended_at}`;
  const history = useHistory(job, stamp);
  const chats = useMemo(() => history.entries.some((entry) => entry.name.startsWith("call:chat")), [history.entries]);
  const speaks = useHasTranscript(job, stamp) || chats;
  const tab = (query.value.get("tab") ?? (chats && !query.value.get("step") ? "transcript" : "journal")) as Tab;
  const step = query.value.get("step");
  const [action, setAction] = useState<string | null>(null);
  const choose = (id: string | null) => setQuery({ step: id, ...(id ? { tab: "journal" } : {}) });
  const before = useRef(job.shown_state);
  useEffect(() => {
    if (before.current !== job.shown_state) announce(`${job.name} is ${look(job.shown_state).word}`);
    before.current = job.shown_state;
  }, [job.shown_state]);
  const keyed: Record<string, string> = { R: "retry", C: "cancel", F: "fork", P: "pause" };
  useKeys("Job", {
    ...Object.fromEntries(Object.entries(keyed).filter(([, name]) => job.allowed.includes(name)).map(([key, name]) => [key, [`${ACTIONS[name]?.text ?? name} this job`, () => setAction(name)] as [string, () => void]])),
    u: ["Back to the list", () => go("/jobs")],
  });
  const tabs: { id: Tab; text: string; count?: number | null }[] = [
    ...(speaks || tab === "transcript" ? [{ id: "transcript" as const, text: "Transcript" }] : []),
    { id: "journal", text: "Journal", count: job.entries },
    { id: "attempts", text: "Attempts" },
    { id: "effects", text: "Effects", count: job.effects_in_doubt },
    { id: "undo", text: "Undo" },
    { id: "output", text: "Output", count: job.topics.length },
    { id: "events", text: "Events" },
    ...(job.budget ? [{ id: "budget" as const, text: "Budget" }] : []),
    ...(job.children > 0 ? [{ id: "children" as const, text: "Children", count: job.children }] : []),
    { id: "raw", text: "Raw" },
  ];
  return (
    <article class="job">
      <Head job={job} act={setAction} />
      <Story job={job} act={setAction} again={again} />
      <Facts job={job} />
      <Timeline job={job} entries={history.entries} spans={history.spans} log={<EventLog job={job} stamp={stamp} />} chosen={step} choose={choose} />
      {history.problem && <Trouble problem={history.problem} />}
      <Tabs label="About this job" tabs={tabs} active={tab} choose={(id) => setQuery({ tab: id })} />
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`} class="tab-panel">
        {tab === "journal" && <Journal job={job} entries={history.entries} step={step} choose={choose} act={setAction} />}
        {tab === "transcript" && <Transcript job={job} stamp={stamp} />}
        {tab === "attempts" && <Attempts job={job} stamp={stamp} entries={history.entries} />}
        {tab === "effects" && <Effects job={job} stamp={stamp} changed={again} />}
        {tab === "undo" && <Undo job={job} stamp={stamp} act={setAction} />}
        {tab === "output" && <Output job={job} />}
        {tab === "events" && <EventLog job={job} stamp={stamp} />}
        {tab === "budget" && job.budget && <BudgetTab budget={job.budget} />}
        {tab === "children" && <JobTree job={job} />}
        {tab === "raw" && <Raw job={job} />}
      </div>
      {action && <ActionDialog job={job} action={action} step={step} entries={history.entries} close={() => setAction(null)} changed={changed} />}
    </article>
  );
}

interface History {
  entries: Entry[];
  spans: Spans | null;
  problem: Problem | null;
}

/** All pages of a list. */
async function whole<T>(path: string, parameters: Record<string, string | number>, next: string): Promise<T[]> {
  const found: T[] = [];
  for (let place: string | null = null; ; ) {
    const page: Page<T> = await get<Page<T>>(path, { ...parameters, [next]: place });
    found.push(...page.items);
    place = page.next;
    if (place === null || page.items.length === 0) return found;
  }
}

export const slimJournal = (id: string): Promise<Entry[]> => whole<Entry>(`jobs/${part(id)}/journal`, { slim: 1, limit: 10_000 }, "after");

let early: { id: string; entries: Promise<Entry[]> } | null = null;

/** Asks for the journal of a job at once, before it is known who asks and what the job is. */
export function prefetch(id: string): void {
  early = { id, entries: slimJournal(id) };
  early.entries.catch(() => {}); // whoever takes it sees it
}

function firstJournal(id: string): Promise<Entry[]> {
  const taken = early?.id === id ? early.entries : slimJournal(id);
  early = null;
  return taken;
}

/** The journal without payloads, and what it does not tell of times; read again as the job goes on. */
function useHistory(job: JobDetail, stamp: string): History {
  const [state, setState] = useState<History>({ entries: [], spans: null, problem: null });
  const load = (journal = slimJournal) => {
    const at = `jobs/${part(job.id)}`;
    const refine = () => get<Spans>(`${at}/timeline`).then((spans) => setState((old) => ({ ...old, spans })), () => {});
    // The journal draws the timeline; what comes later refines it. Of a long one nothing else is asked for before it is drawn.
    const long = job.entries > 1000;
    journal(job.id).then(
      (entries) => {
        setState((old) => ({ ...old, entries, problem: null }));
        if (long) requestAnimationFrame(() => setTimeout(refine, 50));
      },
      (problem: Problem) => setState((old) => ({ ...old, problem })),
    );
    if (!long) void refine();
  };
  const calm = useCalm(() => load(), job.entries > 1000 ? 4000 : 1000);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) load(firstJournal);
    else calm();
    first.current = false;
  }, [stamp]);
  useLive([], (event, data) => {
    if (job.ended_at === null && (event === "stale" || about(data, job.id))) calm();
  });
  return state;
}

/** The log of a job; read only where somebody looks at it. */
function EventLog({ job, stamp }: { job: JobDetail; stamp: string }) {
  const [events, setEvents] = useState<JobEvent[] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    whole<JobEvent>(`jobs/${part(job.id)}/events`, { limit: 1000 }, "cursor").then(setEvents, setProblem);
  }, [stamp]);
  if (problem) return <Trouble problem={problem} />;
  return events ? <Log events={events} start={job.created_at} /> : <Loading rows={4} />;
}

function Head({ job, act }: { job: JobDetail; act: (action: string) => void }) {
  const first = ["resume", "retry", "pause", "fork"].filter((each) => job.allowed.includes(each)).slice(0, 3);
  const rest = job.allowed.filter((each) => !first.includes(each) && ACTIONS[each]);
  return (
    <header class="job-head">
      <div class="job-title">
        <nav aria-label="Where this is"><Link to="/jobs" class="muted">Jobs</Link> <span class="muted" aria-hidden="true">/</span></nav>
        <h1><bdi>{job.name}</bdi>{job.key && <bdi class="key">{job.key}</bdi>}</h1>
      </div>
      <State state={job.shown_state} />
      {job.request && <span class="pill">{job.request} asked for</span>}
      <span class="spring" />
      <div class="actions">
        {first.map((each) => <button key={each} class="button" onClick={() => act(each)}>{ACTIONS[each]?.text}…</button>)}
        <Menu label="More actions" items={[
          ...rest.map((each) => ({ text: `${ACTIONS[each]?.text ?? each}…`, run: () => act(each) })),
          ...(may("jobs.export") ? [{ text: "Export as a bundle", run: () => setQuery({ tab: "raw" }) }] : []),
        ]} />
      </div>
    </header>
  );
}

/** The failure of a step itself, without the words around it that the job has seen. */
function plainly(failure: Failure): { step: string | undefined; type: string; message: string; attempts: number } {
  const [, step, tries, type, message] = /^step (\S+) failed after (\d+) attempts?: ([\w.]+): ([^]*)$/.exec(failure.message) ?? [];
  const attempts = Number(tries ?? failure.attempt ?? 0);
  return { step: failure.step || step, type: (type ?? failure.type).split(".").at(-1) ?? "", message: message ?? failure.message, attempts };
}

/** Failure first; else what it waits for, or what it does. */
function Story({ job, act, again }: { job: JobDetail; act: (action: string) => void; again: () => void }) {
  // An effect in doubt is told below, with what can be done about it.
  const failure = job.failure && !(job.effects_in_doubt > 0 && job.failure.type.endsWith("EffectInDoubt")) ? job.failure : null;
  const plain = failure && plainly(failure);
  const next = whatNext(job);
  const tone = look(job.shown_state).tone;
  const loud = failure !== null || ["retrying", "attention", "failed"].includes(tone);
  if (!loud && !next && !job.unserved) return null;
  return (
    <section class={`story tone-edge-${failure && SETTLED.includes(job.shown_state) ? (job.shown_state === "needs_attention" ? "attention" : "failed") : tone}`} aria-label="What happened, and what happens next">
      {failure && plain && (
        <div class="story-failure">
          <p class="story-line">
            {plain.step && <><Link to={`/jobs/${job.id}?step=${part(plain.step)}`} class="mono">{plain.step}</Link>{" "}</>}
            <strong>{plain.type}</strong>
            {plain.attempts > 1 ? <span class="muted"> after {plain.attempts} attempts</span> : null}
          </p>
          <p class="story-message"><bdi>{plain.message}</bdi></p>
          {(failure.standing ?? []).length > 0 && <p class="small">Still standing: {failure.standing?.join(", ")}</p>}
          {failure.trace && <details><summary>Traceback</summary><div class="code-block"><pre tabIndex={0}>{failure.trace}</pre><Copy text={failure.trace} /></div></details>}
        </div>
      )}
      {!job.failure && job.error && <p class="story-message"><bdi>{job.error}</bdi></p>}
      {next && <p class="story-next">{next}</p>}
      {job.unserved && <p class="story-next"><span class="tone-retrying" aria-hidden="true">!</span> {job.unserved}</p>}
      {job.effects_in_doubt > 0 && <Doubts job={job} again={again} />}
      {job.shown_state === "waiting_for_approval" && may("approvals.read") && <Link to={`/inbox?job=${job.id}`} class="button small">Open the approval</Link>}
      {job.shown_state === "retrying" && job.allowed.includes("retry") && <button class="button small" onClick={() => act("retry")}>Retry now…</button>}
    </section>
  );
}

const MOST_DOUBTS = 3;

/** The effects of which nobody knows whether they happened, each with what can be said about it. */
function Doubts({ job, again }: { job: JobDetail; again: () => void }) {
  const read = useRead<Page<Effect>>(`jobs/${part(job.id)}/effects`);
  const all = (read.data?.items ?? []).filter((each) => each.state === "IN_DOUBT");
  return (
    <>
      {all.slice(0, MOST_DOUBTS).map((effect) => <EffectCard key={effect.key} effect={effect} done={() => { read.again(); again(); }} />)}
      {all.length > MOST_DOUBTS && <p class="story-next">And {count(all.length - MOST_DOUBTS)} more. <button class="button small" onClick={() => setQuery({ tab: "effects" })}>Show all</button></p>}
    </>
  );
}

function whatNext(job: JobRow): preact.ComponentChildren {
  const at = job.current?.again_at ?? job.wakes_at;
  const when = at ? <> <strong class="num">{relative(at, now.value)}</strong></> : null;
  switch (job.shown_state) {
    case "retrying":
      return <><span class="mono">{job.current?.id}</span> failed at attempt {job.current?.attempt}; it is tried again{when}.</>;
    case "waiting_for_approval":
      return <><span class="mono">{plainName(/ of (\S+)$/.exec(job.waits ?? "")?.[1] ?? job.current?.id ?? "")}</span> waits for a person to decide.</>;
    case "waiting_for_message":
    case "waiting_for_children":
    case "sleeping":
    case "waiting":
      return <>It waits: {job.waits ?? "for a worker"}{when}.</>;
    case "scheduled":
      return <>It starts{when}.</>;
    case "stale_heartbeat":
      return <>Its worker <span class="mono">{job.owner}</span> is silent. When its lease ends, another worker continues it.</>;
    case "stuck":
      return <>{job.current ? <span class="mono">{job.current.id}</span> : "It"} makes no progress. It is not started a second time by itself: cancel the job if it hangs.</>;
    case "failed":
      if (job.undone) return afterUndo(job);
      return <>It does not continue by itself. A retry continues at the step that failed; what was done stays done.</>;
    case "needs_attention":
      return <>It is parked until a person acts.</>;
    case "paused":
      return <>It is paused until a person resumes it.</>;
    case "cancelled":
    case "compensated":
      return job.undone ? afterUndo(job) : null;
    case "compensating":
      return <>It is undoing what it did, the latest first.</>;
    default:
      return null;
  }
}

/** What an undo has left. */
function afterUndo(job: JobRow): preact.ComponentChildren {
  if (job.failed_undos > 0) return <>What it did was undone, except for {plural(job.failed_undos, "thing")}: the tab Undo shows which. An undo that failed can be tried again.</>;
  return <>What it did was undone, as far as its steps say how. To run it again, submit it again.</>;
}

function Facts({ job }: { job: JobDetail }) {
  const spent = job.cost;
  return (
    <>
      <dl class="facts">
        <div><dt>Submitted</dt><dd><Ago at={job.created_at} />{job.user && <> by <bdi>{job.user}</bdi></>}</dd></div>
        <div><dt>{job.ended_at ? "Took" : "So far"}</dt><dd class="num">{duration(took(job))}</dd></div>
        <div><dt>Worked</dt><dd class="num">{duration(job.worked)}</dd></div>
        <div><dt>Queue</dt><dd>{job.queue}{job.priority !== 0 && <span class="muted"> p{job.priority}</span>}</dd></div>
        <div><dt>Version</dt><dd>{job.version}</dd></div>
        {job.owner && <div><dt>Worker</dt><dd class="mono clip" title={job.owner}>{shortId(job.owner)}</dd></div>}
        {job.owner && job.heartbeat_at !== null && <div><dt>Heartbeat</dt><dd><Ago at={job.heartbeat_at} /></dd></div>}
        {job.deadline_at && <div><dt>Deadline</dt><dd><Ago at={job.deadline_at} /></dd></div>}
        {spent && (spent.usd || spent.limit_usd) ? <div><dt>Cost</dt><dd class="num">{usd(spent.usd ?? 0)}{spent.limit_usd ? <> of {usd(spent.limit_usd)} <Meter value={spent.usd ?? 0} most={spent.limit_usd} label="Budget used" /></> : null}</dd></div> : null}
        {spent?.tokens ? <div><dt>Tokens</dt><dd class="num">{count(spent.tokens)}</dd></div> : null}
        {job.parent && <div><dt>Parent</dt><dd><Link to={`/jobs/${job.parent}`} class="mono">{shortId(job.parent)}</Link></dd></div>}
        {job.forked_from && <div><dt>Forked from</dt><dd><Link to={`/jobs/${job.forked_from}`} class="mono">{shortId(job.forked_from)}</Link></dd></div>}
        <div><dt>Id</dt><dd class="mono id">{job.id} <Copy text={job.id} label="Copy the id" /></dd></div>
        {Object.keys(job.labels).length > 0 && <div><dt>Labels</dt><dd><Labels labels={job.labels} /></dd></div>}
      </dl>
      {job.progress.filter((each) => each.total || each.note).map((each) => (
        <div key={each.step} class="progress-line">
          <span class="mono">{each.step}</span>
          {each.total ? <><Meter value={each.done ?? 0} most={each.total} label={each.step} /><span class="num">{count(each.done ?? 0)} of {count(each.total)}</span></> : null}
          <bdi class="muted">{each.note}</bdi>
        </div>
      ))}
      <div class="two">
        <Payload brief title="Input" value={job.input} large={job.large.input} name={`${job.name}-input`} />
        <Payload brief title="Result" value={job.result} large={job.large.result} name={`${job.name}-result`} />
      </div>
    </>
  );
}
