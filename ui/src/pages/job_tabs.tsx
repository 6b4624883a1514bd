// The tabs of a job.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { address, type Attempt, type Budget, type Effect, type Entry, type Failure, get, type JobDetail, type Json, may, type Page, part, type Piece, Problem } from "../api";
import { bytes, count, duration, now, plural, precise, usd } from "../format";
import { useLive, useRead } from "../live";
import { At, Choice, Copy, Empty, Loading, Meter, Trouble } from "../parts/basics";
import { Diff } from "../parts/diff";
import { Icon } from "../parts/icons";
import { Payload, pretty } from "../parts/payload";
import { VirtualRows } from "../parts/virtual";
import { Link, query, setQuery } from "../router";
import { State } from "../status";
import { EffectCard } from "./effects";

// Journal

interface JournalProps {
  job: JobDetail;
  entries: Entry[];
  step: string | null;
  choose: (id: string | null) => void;
  act: (action: string) => void;
}

export function Journal({ job, entries, step, choose, act }: JournalProps) {
  const [filter, setFilter] = useState("");
  const shown = useMemo(() => {
    const low = filter.toLowerCase();
    return low ? entries.filter((entry) => `${entry.id} ${entry.kind} ${entry.state}`.toLowerCase().includes(low)) : entries;
  }, [entries, filter]);
  const worst = step ? undefined : entries.findLast((entry) => entry.state === "FAILED") ?? (job.shown_state === "retrying" ? entries.find((entry) => entry.id === job.current?.id) : undefined);
  const chosen = worst ?? entries.find((entry) => entry.id === step) ?? (entries.length === 1 ? entries[0] : undefined);
  if (entries.length === 0) return <p class="muted pad">The journal is empty: no step has begun.</p>;
  return (
    <div class="split">
      <div class="split-list">
        {entries.length > 8 && <input type="search" class="small" placeholder="Filter: a step, a kind, failed" aria-label="Filter the journal" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />}
        <VirtualRows label="Journal" count={shown.length} height={32} within={Math.max(34, Math.min(480, shown.length * 32 + 2))} focus={chosen ? shown.indexOf(chosen) : null}
          row={(index) => {
            const entry = shown[index];
            return entry && (
              <button key={entry.seq} class={entry === chosen ? "entry chosen" : "entry"} aria-pressed={entry === chosen} onClick={() => choose(entry.id === step ? null : entry.id)}>
                <span class="num muted">{entry.seq}</span>
                <State state={entry.state === "PENDING" && entry.wake_at && (entry.attempt ?? 0) > 0 ? "RETRYING" : entry.state} word={false} />
                <bdi class="mono clip">{entry.id}</bdi>
                <span class="muted">{entry.kind === "step" ? "" : entry.kind}</span>
                {(entry.attempt ?? 0) > 1 ? <span class="tone-retrying small">↻{entry.attempt}</span> : <span />}
                <span class="num">{entry.started_at ? duration((entry.ended_at ?? (job.ended_at ?? now.value)) - entry.started_at) : ""}</span>
                <span class="num muted"><At at={entry.started_at} seconds /></span>
              </button>
            );
          }} />
        {shown.length === 0 && <p class="muted pad">Nothing matches.</p>}
      </div>
      <div class="split-detail">
        {chosen ? <EntryDetail key={`${chosen.id} ${chosen.state}`} job={job} entry={chosen} act={act} /> : <p class="muted pad">Choose an entry, here or in the timeline, to see its input, output and error.</p>}
      </div>
    </div>
  );
}

/** An entry of the journal with its payloads. */
const useWhole = (job: JobDetail, entry: Entry) => useRead<Page<Entry>>(`jobs/${part(job.id)}/journal?limit=1${entry.seq > 0 ? `&after=${entry.seq - 1}` : ""}`);

function EntryDetail({ job, entry, act }: { job: JobDetail; entry: Entry; act: (action: string) => void }) {
  const read = useWhole(job, entry);
  const full = read.data?.items[0];
  return (
    <div class="entry-detail">
      <div class="entry-head">
        <h3 class="mono">{entry.id}</h3>
        <State state={entry.state} />
        <span class="spring" />
        {job.allowed.includes("retry") && <button class="button small" onClick={() => act("retry")}>Retry from here…</button>}
        {job.allowed.includes("fork") && <button class="button small" onClick={() => act("fork")}>Fork here…</button>}
      </div>
      <dl class="facts small">
        <div><dt>Kind</dt><dd>{entry.kind}</dd></div>
        <div><dt>Attempt</dt><dd class="num">{entry.attempt ?? 0}</dd></div>
        <div><dt>Started</dt><dd><At at={entry.started_at} seconds /></dd></div>
        <div><dt>Ended</dt><dd><At at={entry.ended_at} seconds /></dd></div>
        {entry.wake_at ? <div><dt>Wakes</dt><dd><At at={entry.wake_at} seconds /></dd></div> : null}
        {entry.checkpoint_no ? <div><dt>Checkpoints</dt><dd class="num">{entry.checkpoint_no}</dd></div> : null}
      </dl>
      {read.problem && <Trouble problem={read.problem} />}
      {!full && !read.problem && <Loading rows={3} />}
      {full && (
        <>
          {full.error && <FailureBox failure={full.error} />}
          <Payload title="Input" value={full.input} large={full.large?.input} name={`${entry.id}-input`} />
          <Payload title="Output" value={full.output} large={full.large?.output} name={`${entry.id}-output`} />
          {hasCheckpoint(full) && <Payload title="Checkpoint" value={full.checkpoint} large={full.large?.checkpoint} name={`${entry.id}-checkpoint`} />}
        </>
      )}
    </div>
  );
}

const hasCheckpoint = (entry: Entry): boolean => (entry.checkpoint ?? entry.large?.checkpoint ?? null) !== null;

export function FailureBox({ failure }: { failure: Failure }) {
  return (
    <div class="failure">
      <p><strong class="tone-failed">✗ {failure.type.split(".").at(-1)}</strong> <bdi>{failure.message}</bdi></p>
      {failure.trace && <details><summary>Traceback</summary><div class="code-block"><pre tabIndex={0}>{failure.trace}</pre><Copy text={failure.trace} /></div></details>}
    </div>
  );
}

// Attempts

export function Attempts({ job, stamp, entries }: { job: JobDetail; stamp: string; entries: Entry[] }) {
  const read = useRead<Page<Attempt>>(`jobs/${part(job.id)}/attempts`);
  useEffect(() => {
    if (read.data) read.again();
  }, [stamp]);
  const attempts = useMemo(() => read.data?.items ?? [], [read.data]);
  const steps = useMemo(() => {
    const grouped = new Map<string, Attempt[]>();
    for (const attempt of attempts) grouped.set(attempt.step, [...(grouped.get(attempt.step) ?? []), attempt]);
    return [...grouped].sort((a, b) => b[1].length - a[1].length).slice(0, 300);
  }, [attempts]);
  const wanted = query.value.get("step");
  const current = steps.find(([step]) => step === wanted) ?? steps[0];
  if (read.problem) return <Trouble problem={read.problem} again={read.again} />;
  if (!read.data) return <Loading rows={3} />;
  if (!current) return <p class="muted pad">No attempt is recorded yet.</p>;
  const [step, tries] = current;
  const entry = entries.find((each) => each.id === step);
  return (
    <div>
      <div class="toolbar">
        <label for="attempt-step">Step</label>
        <select id="attempt-step" value={step} onChange={(event) => setQuery({ step: event.currentTarget.value })}>
          {steps.map(([id, all]) => <option key={id} value={id}>{id}: {plural(all.length, "attempt")}</option>)}
        </select>
        {entry && <State state={entry.state} />}
      </div>
      <Compare key={step} tries={tries} job={job} />
      {entry && <Given key={`${step} ${entry.state}`} job={job} entry={entry} tries={tries.length} />}
    </div>
  );
}

/** What is stored of a step besides its attempts. */
function Given({ job, entry, tries }: { job: JobDetail; entry: Entry; tries: number }) {
  const full = useWhole(job, entry).data?.items[0];
  if (!full) return null;
  const some = hasCheckpoint(full);
  return (
    <section aria-label="What the attempts were given">
      <h3>What {tries === 1 ? "it was" : "they were"} given <span class="muted">{tries > 1 && "the same input every time"}{some && `; the next one would begin at checkpoint ${full.checkpoint_no ?? 0}`}</span></h3>
      <div class="two">
        <Payload title="Input" value={full.input} large={full.large?.input} name={`${entry.id}-input`} />
        {some ? <Payload title="Checkpoint" value={full.checkpoint} large={full.large?.checkpoint} name={`${entry.id}-checkpoint`} /> : <Payload title="Output" value={full.output} large={full.large?.output} name={`${entry.id}-output`} />}
      </div>
    </section>
  );
}

function Compare({ tries, job }: { tries: Attempt[]; job: JobDetail }) {
  const last = tries.length - 1;
  const [left, setLeft] = useState(Math.max(0, last - 1));
  const [right, setRight] = useState(last);
  const [a, b] = [tries[Math.min(left, last)], tries[Math.min(right, last)]];
  if (!a || !b) return null;
  if (tries.length === 1) return <AttemptCard attempt={b} job={job} />;
  return (
    <>
      <div class="two attempts">
        <AttemptCard attempt={a} job={job} choose={<Pick label="Left attempt" tries={tries} value={left} choose={setLeft} />} />
        <AttemptCard attempt={b} job={job} choose={<Pick label="Right attempt" tries={tries} value={right} choose={setRight} />} />
      </div>
      <h3>What differs</h3>
      <Diff before={asText(a)} after={asText(b)} names={[`attempt ${a.attempt}`, `attempt ${b.attempt}`]} />
    </>
  );
}

function Pick({ label, tries, value, choose }: { label: string; tries: Attempt[]; value: number; choose: (index: number) => void }) {
  return (
    <select aria-label={label} value={value} onChange={(event) => choose(Number(event.currentTarget.value))}>
      {tries.map((each, index) => <option key={index} value={index}>attempt {each.attempt}: {each.outcome}</option>)}
    </select>
  );
}

const failureOf = (error: Attempt["error"]): Failure | null => (typeof error === "string" ? named(error) : error);

/** "ValueError: no" in its two parts. */
function named(text: string): Failure {
  const [, type = "", message = text] = /^([\w.]+): ([^]*)$/.exec(text) ?? [];
  return { type, message };
}

function asText(attempt: Attempt): string {
  const failure = failureOf(attempt.error);
  return [
    `outcome: ${attempt.outcome}`,
    `worker: ${attempt.worker ?? "unknown"}`,
    `version: ${attempt.version ?? "unknown"}`,
    `took: ${attempt.started_at !== null && attempt.ended_at !== null ? duration(attempt.ended_at - attempt.started_at) : "unknown"}`,
    ...(failure ? [`error: ${failure.type}`, ...failure.message.split("\n"), ...(failure.trace ?? "").split("\n")] : []),
  ].join("\n");
}

function AttemptCard({ attempt, job, choose }: { attempt: Attempt; job: JobDetail; choose?: preact.ComponentChildren }) {
  const failure = failureOf(attempt.error);
  const bad = failure !== null || /fail|lost|retr/i.test(attempt.outcome);
  return (
    <section class="card" aria-label={`Attempt ${attempt.attempt}`}>
      <div class="entry-head">
        {choose ?? <h3>Attempt {attempt.attempt}</h3>}
        <span class="spring" />
        <span class={bad ? "tone-failed" : "tone-done"}>{bad ? "✗" : "✓"} {attempt.outcome}</span>
      </div>
      <dl class="facts small">
        <div><dt>Started</dt><dd><At at={attempt.started_at} seconds /></dd></div>
        <div><dt>Took</dt><dd class="num">{attempt.started_at !== null ? duration((attempt.ended_at ?? job.ended_at ?? now.value) - attempt.started_at) : "–"}</dd></div>
        {attempt.backoff_until !== null && attempt.ended_at !== null && <div><dt>Back-off</dt><dd class="num">{duration(attempt.backoff_until - attempt.ended_at)}</dd></div>}
        <div><dt>Worker</dt><dd class="mono clip">{attempt.worker ?? "–"}</dd></div>
        <div><dt>Version</dt><dd>{attempt.version ?? job.version}</dd></div>
      </dl>
      {failure && <FailureBox failure={{ ...failure, type: failure.type || "error" }} />}
    </section>
  );
}

// Effects and undo

export function Effects({ job, stamp, changed }: { job: JobDetail; stamp: string; changed: () => void }) {
  const read = useRead<Page<Effect>>(`jobs/${part(job.id)}/effects`);
  useEffect(() => {
    if (read.data) read.again();
  }, [stamp]);
  if (read.problem) return <Trouble problem={read.problem} again={read.again} />;
  if (!read.data) return <Loading rows={3} />;
  if (read.data.items.length === 0) {
    return <Empty title="No effects" code={`@app.step
async def pay(ctx: StepContext, usd: int) -> str:
    return await ctx.effect("payment", charge, target="card 1", details={"usd": usd})`}>What a step does to the outside world is written down before it happens, so that it happens once.</Empty>;
  }
  return <div class="cards">{read.data.items.map((effect) => <EffectCard key={effect.key} effect={effect} done={() => { read.again(); changed(); }} />)}</div>;
}

interface UndoItem {
  id: string;
  step: string;
  kind: string;
  what: string;
  by: string | null;
  child: string | null;
  state: string;
  left_undone: boolean;
  doubtful: boolean;
  known: boolean;
}

interface UndoPreview {
  begun: boolean;
  ended: boolean;
  pivot: string | null;
  items: UndoItem[];
  remains: { step: string; what: string; why: string }[];
  plain: number;
}

function ended(plan: UndoPreview): string {
  const left = plan.items.filter((item) => item.left_undone || item.state === "FAILED").length;
  return left > 0 ? `The undo has ended; ${plural(left, "item")} could not be undone.` : "The undo has ended: everything here is undone.";
}

export function Undo({ job, stamp, act }: { job: JobDetail; stamp: string; act: (action: string) => void }) {
  const read = useRead<UndoPreview>(`jobs/${part(job.id)}/undo`);
  useEffect(() => {
    if (read.data) read.again();
  }, [stamp]);
  if (read.problem) return <Trouble problem={read.problem} again={read.again} />;
  const plan = read.data;
  if (!plan) return <Loading rows={3} />;
  const says = plan.pivot ? `Nothing is undone any more: ${plan.pivot} was the point of no return.` : plan.ended ? ended(plan) : plan.begun ? "The undo has begun; this is how far it is." : plan.items.length === 0 ? "Nothing would be undone now." : "What would be undone now, in this order.";
  return (
    <div class="undo">
      <div class="toolbar">
        <p class="says">{says}</p>
        <span class="spring" />
        {job.allowed.includes("compensate") && plan.items.length > 0 && <button class="button danger" onClick={() => act("compensate")}>{plan.begun ? "Try again what failed…" : "Undo it…"}</button>}
      </div>
      {plan.items.length > 0 && (
        <ol class="card undo-list" aria-label="What is undone">
          {plan.items.map((item, index) => (
            <li key={item.id}>
              <span class="num muted">{index + 1}</span>
              {plan.begun ? <State state={item.state} word={false} /> : <span class="tone-undo" aria-hidden="true">↶</span>}
              <span class="mono">{item.step}</span>
              <bdi class="clip">{item.what === item.step ? "" : item.what}</bdi>
              <span class="muted clip">
                {item.child ? <>as a whole: <Link to={`/jobs/${item.child}`} class="mono">{item.child.slice(-8)}</Link></> : item.by ? `by ${item.by}` : "by its compensation"}
                {item.doubtful && ", though nobody knows whether it happened"}{item.left_undone && ", abandoned by a person"}{!item.known && ", if its worker knows how"}
              </span>
            </li>
          ))}
        </ol>
      )}
      {plan.remains.length > 0 && (
        <>
          <h3>{plan.ended ? "Stays" : "Would stay"}</h3>
          <ul class="card undo-list">
            {plan.remains.map((item, index) => <li key={index}><span /><span class="tone-off" aria-hidden="true">–</span><span class="mono">{item.step}</span><bdi class="clip">{item.what}</bdi><span class="muted clip" title={item.why}>{item.why}</span></li>)}
          </ul>
        </>
      )}
      {plan.plain > 0 && <p class="muted small">{plural(plan.plain, "step")} did nothing to the outside that is recorded.</p>}
    </div>
  );
}

// Output

export function Output({ job }: { job: JobDetail }) {
  const [topic, setTopic] = useState(job.topics[0]?.topic ?? "");
  useEffect(() => {
    if (!topic && job.topics[0]) setTopic(job.topics[0].topic);
  }, [job.topics]);
  if (job.topics.length === 0) return <Empty title="No output" code={`ctx.emit(word, topic="tokens")   # in a step: whoever watches sees it at once`}>A job can emit text and values while it runs. They are stored, and shown here live.</Empty>;
  const about = job.topics.find((each) => each.topic === topic);
  return (
    <div>
      <div class="toolbar">
        {job.topics.length > 1 && <Choice label="Topic" options={job.topics.map((each) => [each.topic, each.topic] as [string, string])} value={topic} choose={setTopic} />}
        {about && <span class="muted num">{plural(about.pieces, "piece")}, {bytes(about.bytes)}{about.dropped > 0 && `, ${count(about.dropped)} dropped`}</span>}
      </div>
      {topic && <Pieces key={topic} job={job} topic={topic} />}
    </div>
  );
}

function Pieces({ job, topic }: { job: JobDetail; topic: string }) {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [problem, setProblem] = useState<Problem | null>(null);
  const after = useRef(0);
  const busy = useRef(false);
  const ended = useRef(false);
  const box = useRef<HTMLDivElement>(null);
  const load = async () => {
    if (busy.current || ended.current) return;
    busy.current = true;
    try {
      for (;;) {
        const page = await get<Page<Piece> & { ended: boolean }>(`jobs/${part(job.id)}/output/${part(topic)}`, { after: after.current });
        ended.current = page.ended;
        const last = page.items.at(-1);
        if (!last) break;
        after.current = last.position;
        setPieces((old) => [...old, ...page.items]);
        if (page.ended) break;
      }
      setProblem(null);
    } catch (error) {
      setProblem(error as Problem);
    }
    busy.current = false;
  };
  useLive([`output:${job.id}:${topic}`], (event, data) => {
    if (event === "output" || event === "stale" || (event === "job" && JSON.stringify(data).includes(job.id))) void load();
  });
  useEffect(() => void load(), [job.shown_state, job.topics]);
  const kept = useMemo(() => standing(pieces), [pieces]);
  const text = kept.every((piece) => typeof piece.value === "string");
  useEffect(() => {
    const element = box.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 160) element.scrollTop = element.scrollHeight;
  }, [kept]);
  if (problem) return <Trouble problem={problem} />;
  return (
    <div class="output" ref={box} tabIndex={0} role="log" aria-label={`Output on ${topic}`}>
      {text ? <pre dir="auto">{kept.map((piece) => piece.value as string).join("")}</pre> : kept.slice(-2000).map((piece) => (
        <div key={piece.position} class="piece"><span class="mono muted">{precise(piece.at)}</span><span class="mono muted">{piece.step}</span><pre>{pretty(piece.value)}</pre></div>
      ))}
      {kept.length === 0 && <p class="muted">Nothing yet.</p>}
    </div>
  );
}

/** The pieces without those of attempts that did not count. */
export function standing(pieces: Piece[]): Piece[] {
  let kept: Piece[] = [];
  for (const piece of pieces) {
    if (piece.discards !== null && piece.discards !== undefined) {
      const from = piece.discards;
      kept = kept.filter((each) => each.position < from);
    }
    if (piece.value !== null && piece.value !== undefined) kept.push(piece);
  }
  return kept;
}

// Budget, raw

export function BudgetTab({ budget }: { budget: Budget }) {
  const shown = (name: string, value: number) => (name === "usd" ? usd(value) : name === "seconds" ? duration(value) : count(value));
  const names = [...new Set([...Object.keys(budget.limits), ...Object.keys(budget.spent)])];
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Budget">
      <table>
        <thead><tr><th>Of</th><th class="num">Spent</th><th class="num">Reserved</th><th class="num">By children</th><th class="num">Limit</th><th>Used</th></tr></thead>
        <tbody>
          {names.map((name) => {
            const limit = budget.limits[name];
            const gone = (budget.spent[name] ?? 0) + (budget.reserved[name] ?? 0) + (budget.by_others[name] ?? 0);
            return (
              <tr key={name}>
                <td>{name}</td>
                <td class="num">{shown(name, budget.spent[name] ?? 0)}</td>
                <td class="num">{shown(name, budget.reserved[name] ?? 0)}</td>
                <td class="num">{shown(name, budget.by_others[name] ?? 0)}</td>
                <td class="num">{typeof limit === "number" ? shown(name, limit) : <span class="muted">none</span>}</td>
                <td>{typeof limit === "number" && <Meter value={gone} most={limit} label={`${name} used`} />}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

export function Raw({ job }: { job: JobDetail }) {
  return (
    <div>
      <div class="toolbar">
        <p class="says">The job as the API shows it.</p>
        <span class="spring" />
        {may("jobs.export") && <a class="button" href={address(`jobs/${part(job.id)}/export`)} download={`${job.name}-${job.id}.json`}><Icon name="download" size={14} /> Export the bundle</a>}
      </div>
      {may("jobs.export") && <p class="muted small">A bundle holds journal, payloads, effects and events. <code>perdure jobs import FILE</code> shows it in another store, where nothing runs it.</p>}
      <Payload title="Job" value={job as unknown as Json} name={`${job.name}-${job.id}`} />
    </div>
  );
}
