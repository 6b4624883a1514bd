// Two jobs side by side: what differs between them?
import { useEffect, useMemo, useState } from "preact/hooks";

import { type Entry, get, type JobDetail, type Json, type Large, type Page, part, Problem } from "../api";
import { count, duration, moment, shortId, took, usd } from "../format";
import { useRead } from "../live";
import { Choice, Empty, Loading, PageHead, Trouble, useTitle } from "../parts/basics";
import { Diff } from "../parts/diff";
import { Payload, pretty } from "../parts/payload";
import { VirtualRows } from "../parts/virtual";
import { Link, query, setQuery } from "../router";
import { look, State } from "../status";
import { slimJournal } from "./job";

export function ComparePage() {
  useTitle("Compare");
  const [a, b] = [query.value.get("a"), query.value.get("b")];
  const left = useRead<JobDetail>(a ? `jobs/${part(a)}` : null, { every: 15 });
  const right = useRead<JobDetail>(b ? `jobs/${part(b)}` : null, { every: 15 });
  if (!a || !b) return <><PageHead title="Compare" /><Empty title="Which two jobs?">Select two in the <Link to="/jobs">list of jobs</Link> with their checkboxes or <kbd>x</kbd>, then press <em>Compare</em>.</Empty></>;
  const problem = left.problem ?? right.problem;
  return (
    <>
      <PageHead title="Compare" says={left.data && right.data ? summary(left.data, right.data) : ""}>
        <button class="button small" onClick={() => setQuery({ a: b, b: a })}>Swap sides</button>
      </PageHead>
      {problem && <Trouble problem={problem} again={() => { left.again(); right.again(); }} />}
      {!problem && (!left.data || !right.data) && <Loading />}
      {left.data && right.data && <Both key={`${a} ${b}`} left={left.data} right={right.data} />}
    </>
  );
}


function summary(left: JobDetail, right: JobDetail): string {
  const same = look(left.shown_state).word === look(right.shown_state).word;
  const outcome = same ? `Both ${look(left.shown_state).word}` : `${look(left.shown_state).word}, and ${look(right.shown_state).word}`;
  const gap = took(right) - took(left);
  const slower = Math.abs(gap) < 0.05 * Math.max(took(left), took(right)) ? "about as quick" : `the right one ${duration(Math.abs(gap))} ${gap > 0 ? "longer" : "shorter"}`;
  return `${outcome.charAt(0).toUpperCase()}${outcome.slice(1)}; ${slower}.`;
}

function Both({ left, right }: { left: JobDetail; right: JobDetail }) {
  return (
    <>
      <Facts left={left} right={right} />
      <PayloadDiff title="Input" left={left.input} right={right.input} large={[left.large.input, right.large.input]} />
      <PayloadDiff title="Result" left={left.result} right={right.result} large={[left.large.result, right.large.result]} />
      {(left.failure || right.failure) && <PayloadDiff title="Error" left={told(left)} right={told(right)} />}
      <Steps left={left} right={right} />
    </>
  );
}

const told = (job: JobDetail): string | null => (job.failure ? [job.failure.step, `${job.failure.type}: ${job.failure.message}`, job.failure.trace].filter(Boolean).join("\n") : null);

function Facts({ left, right }: { left: JobDetail; right: JobDetail }) {
  const rows: [string, (job: JobDetail) => preact.ComponentChildren, boolean?, ((job: JobDetail) => unknown)?][] = [
    ["State", (job) => <State state={job.shown_state} />, false, (job) => job.shown_state],
    ["Key", (job) => <bdi>{job.key ?? "–"}</bdi>, false, (job) => job.key],
    ["Submitted", (job) => <>{moment(job.created_at)}{job.user && <span class="muted"> by <bdi>{job.user}</bdi></span>}</>, false, (job) => job.created_at],
    ["Took", (job) => duration(took(job)), true],
    ["Worked", (job) => duration(job.worked), true],
    ["Steps", (job) => count(job.entries), true],
    ["Cost", (job) => (job.cost ? `${usd(job.cost.usd ?? 0)}${job.cost.tokens ? `, ${count(job.cost.tokens)} tokens` : ""}` : "–"), true],
    ["Version", (job) => job.version],
    ["Queue", (job) => job.queue],
    ["Labels", (job) => Object.entries(job.labels).map(([name, value]) => `${name}=${value}`).sort().join(", ") || "–"],
  ];
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="The two jobs">
      <table class="compare-facts">
        <thead>
          <tr>
            <th><span class="sr">What</span></th>
            {[left, right].map((job) => <th key={job.id} scope="col"><Link to={`/jobs/${job.id}`}><bdi>{job.name}</bdi></Link> <span class="mono muted">{shortId(job.id)}</span></th>)}
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, of, figure, plain]) => <tr key={name} class={(plain ?? of)(left) === (plain ?? of)(right) ? "same-row" : ""}><th scope="row">{name}</th>{[left, right].map((job) => <td key={job.id} class={figure ? "figure" : ""}>{of(job)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

function PayloadDiff({ title, left, right, large = [undefined, undefined] }: { title: string; left: Json | undefined; right: Json | undefined; large?: [Large | undefined, Large | undefined] }) {
  const [a, b] = [pretty(left ?? null), pretty(right ?? null)];
  return (
    <section class="compare-part" aria-label={title}>
      <h2 class="section">{title}</h2>
      {large[0] || large[1] ? <div class="two"><Payload title="Left" value={left} large={large[0]} /><Payload title="Right" value={right} large={large[1]} /></div>
        : a === b ? <Same text={a} /> : <Diff before={a} after={b} names={["left", "right"]} />}
    </section>
  );
}

function Same({ text }: { text: string }) {
  return text === "null" ? <p class="muted">Both have none.</p> : <details class="same"><summary>The same on both sides</summary><pre class="json" tabIndex={0}>{text}</pre></details>;
}

interface Pair {
  id: string;
  left: Entry | null;
  right: Entry | null;
}

/** The steps of both in the order of the left one; those of the right one alone behind the step before them. */
export function paired(left: Entry[], right: Entry[]): Pair[] {
  const others = new Map(right.map((entry) => [entry.id, entry]));
  const known = new Set(left.map((entry) => entry.id));
  const behind = new Map<string, Entry[]>(); // "" is the start
  let last = "";
  for (const entry of right) {
    if (known.has(entry.id)) last = entry.id;
    else behind.set(last, [...(behind.get(last) ?? []), entry]);
  }
  const alone = (id: string): Pair[] => (behind.get(id) ?? []).map((entry) => ({ id: entry.id, left: null, right: entry }));
  return [...alone(""), ...left.flatMap((entry) => [{ id: entry.id, left: entry, right: others.get(entry.id) ?? null }, ...alone(entry.id)])];
}

const length = (entry: Entry | null): number | null => (entry?.started_at && entry.ended_at ? entry.ended_at - entry.started_at : null);

function differs(pair: Pair): boolean {
  if (!pair.left || !pair.right || pair.left.state !== pair.right.state || (pair.left.attempt ?? 0) !== (pair.right.attempt ?? 0)) return true;
  const [a, b] = [length(pair.left) ?? 0, length(pair.right) ?? 0];
  return Math.abs(a - b) > 0.1 && Math.abs(a - b) > 0.25 * Math.max(a, b);
}

function Steps({ left, right }: { left: JobDetail; right: JobDetail }) {
  const [journals, setJournals] = useState<[Entry[], Entry[]] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [which, setWhich] = useState<"all" | "differing">("all");
  const step = query.value.get("step");
  useEffect(() => {
    Promise.all([slimJournal(left.id), slimJournal(right.id)]).then(setJournals, setProblem);
  }, [left.entries, left.state, right.entries, right.state]);
  const pairs = useMemo(() => (journals ? paired(...journals) : []), [journals]);
  const different = useMemo(() => pairs.filter(differs), [pairs]);
  const longest = useMemo(() => pairs.reduce((most, pair) => Math.max(most, length(pair.left) ?? 0, length(pair.right) ?? 0), 0.001), [pairs]);
  if (problem) return <Trouble problem={problem} />;
  if (!journals) return <Loading rows={4} />;
  const shown = which === "all" ? pairs : different;
  const chosen = pairs.find((pair) => pair.id === step);
  return (
    <section class="compare-part" aria-label="Steps">
      <div class="toolbar">
        <h2 class="section">Steps</h2>
        <Choice label="Which steps" options={[["all", `${count(pairs.length)} in all`], ["differing", `${count(different.length)} differ`]]} value={which} choose={setWhich} />
      </div>
      <div class="pair heads" aria-hidden="true"><span>Step</span><span>Left</span><span /><span>Right</span><span /><span class="num">Difference</span></div>
      <VirtualRows label="Steps of both jobs" count={shown.length} height={32} within={Math.max(34, Math.min(512, shown.length * 32 + 2))}
        row={(index) => {
          const pair = shown[index];
          return pair && <PairRow key={pair.id} pair={pair} longest={longest} chosen={pair.id === step} choose={() => setQuery({ step: pair.id === step ? null : pair.id })} />;
        }} />
      {shown.length === 0 && <p class="muted pad">{which === "all" ? "Neither has done a step yet." : "Every step went the same way, and took about as long."}</p>}
      {chosen && <StepDiff key={chosen.id} pair={chosen} left={left.id} right={right.id} />}
    </section>
  );
}

function PairRow({ pair, longest, chosen, choose }: { pair: Pair; longest: number; chosen: boolean; choose: () => void }) {
  const [a, b] = [length(pair.left), length(pair.right)];
  const gap = a !== null && b !== null ? b - a : null;
  const side = (entry: Entry | null, long: number | null) => (
    <>
      <span class="pair-side">{entry ? <><State state={entry.state} word={false} /><span class="num">{long === null ? "–" : duration(long)}</span>{(entry.attempt ?? 0) > 1 && <span class="tone-retrying small">↻{entry.attempt}</span>}</> : <span class="muted">not there</span>}</span>
      <span class="pair-bar" aria-hidden="true">{entry && long !== null && <i class={`tone-${look(entry.state).tone}`} style={{ width: `${Math.max(1, (long / longest) * 100)}%` }} />}</span>
    </>
  );
  return (
    <button class={chosen ? "pair chosen" : "pair"} aria-pressed={chosen} onClick={choose}>
      <bdi class="mono clip">{pair.id}</bdi>
      {side(pair.left, a)}
      {side(pair.right, b)}
      <span class={gap !== null && differs(pair) ? "num" : "num muted"}>{gap === null ? "" : Math.abs(gap) < 0.0005 ? "=" : `${gap > 0 ? "+" : "−"}${duration(Math.abs(gap))}`}</span>
    </button>
  );
}

/** What went into a step on both sides, and what came out. */
function StepDiff({ pair, left, right }: { pair: Pair; left: string; right: string }) {
  const [found, setFound] = useState<[Entry | null, Entry | null] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const whole = (job: string, entry: Entry | null): Promise<Entry | null> => entry ? get<Page<Entry>>(`jobs/${part(job)}/journal`, { limit: 1, after: entry.seq > 0 ? entry.seq - 1 : null }).then((page) => page.items[0] ?? null) : Promise.resolve(null);
    Promise.all([whole(left, pair.left), whole(right, pair.right)]).then(setFound, setProblem);
  }, []);
  if (problem) return <Trouble problem={problem} />;
  if (!found) return <Loading rows={2} />;
  const [a, b] = found;
  const errors = [a, b].map((entry) => (entry?.error ? `${entry.error.type}: ${entry.error.message}` : null));
  return (
    <div class="card step-diff">
      <h3 class="mono">{pair.id}</h3>
      {!(a && b) && <p class="muted">The {a ? "right" : "left"} job has not done it.</p>}
      <PayloadDiff title="Input" left={a?.input} right={b?.input} large={[a?.large?.input, b?.large?.input]} />
      <PayloadDiff title="Output" left={a?.output} right={b?.output} large={[a?.large?.output, b?.large?.output]} />
      {(errors[0] || errors[1]) && <PayloadDiff title="Error" left={errors[0] ?? null} right={errors[1] ?? null} />}
    </div>
  );
}
