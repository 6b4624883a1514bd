// What can be done with a job; each dialog says what it will do before it does it.
import { useEffect, useState } from "preact/hooks";

import { type Entry, get, type JobDetail, type Json, may, part, post, Problem } from "../api";
import { Ask, toast, Trouble } from "../parts/basics";
import { changesOf, hasMarker, misplaced } from "../parts/changes";
import { Diff } from "../parts/diff";
import { pretty } from "../parts/payload";
import { go } from "../router";

interface Action {
  text: string;
  says: string;
  verb: string;
  danger?: boolean;
  step?: boolean;
}

export const ACTIONS: Record<string, Action> = {
  resume: { text: "Resume", verb: "Resume it", says: "It continues where it stopped, as soon as a worker is free. Nothing that succeeded runs again." },
  retry: { text: "Retry", verb: "Retry it", says: "It runs again from the step that failed, or from the step you choose. Results before it are kept; effects that are recorded as done are not repeated." },
  pause: { text: "Pause", verb: "Pause it", says: "It stops at the next safe point, and only a person resumes it. A step that runs now is ended at its next checkpoint or await." },
  cancel: { text: "Cancel", verb: "Cancel it", danger: true, says: "It stops, its children too. What it did is undone where its steps say how; the tab Undo shows what that is." },
  compensate: { text: "Undo", verb: "Undo it", danger: true, says: "What it did is undone in reverse order, where its steps say how. This cannot be taken back." },
  skip: { text: "Skip a step", verb: "Skip the step", step: true, danger: true, says: "The step is recorded as done by hand, with the result that you give. The job continues after it." },
  abandon_undo: { text: "Continue without an undo", verb: "Continue without it", step: true, danger: true, says: "The undo that failed is left undone, and the others continue. Somebody should undo it by hand." },
  send: { text: "Send a message", verb: "Send it", says: "The job gets it where it waits for this topic, now or later." },
  fork: { text: "Fork", verb: "Fork it", step: true, says: "A new job begins as a copy of this one: it has done everything before the step, and does the rest anew. This job stays as it is." },
};

interface Props {
  job: JobDetail;
  action: string;
  step: string | null;
  entries: Entry[];
  close: () => void;
  changed: (job: JobDetail) => void;
}

export function ActionDialog(props: Props) {
  const action = ACTIONS[props.action];
  if (!action) return null;
  if (props.action === "fork") return <ForkDialog {...props} />;
  if (props.action === "send") return <SendDialog {...props} />;
  return <CommandDialog {...props} />;
}

function StepChoice({ entries, value, choose, label, any }: { entries: Entry[]; value: string; choose: (id: string) => void; label: string; any?: string }) {
  const most = 500;
  const near = entries.length > most ? entries.filter((entry, index) => index >= entries.length - most || entry.id === value || entry.state === "FAILED") : entries;
  return (
    <div class="field">
      <label for="which-step">{label}</label>
      <select id="which-step" value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {any && <option value="">{any}</option>}
        {near.map((entry) => <option key={entry.seq} value={entry.id}>{entry.id} ({entry.state.toLowerCase()})</option>)}
      </select>
    </div>
  );
}

/** JSON that a person edits; null while it is none. */
function JsonField({ label, text, change }: { label: string; text: string; change: (text: string, value: Json | undefined) => void }) {
  const [wrong, setWrong] = useState("");
  return (
    <div class="field">
      <label for="json-field">{label}</label>
      <textarea id="json-field" class="mono" rows={8} spellcheck={false} value={text} aria-invalid={wrong !== ""} aria-describedby="json-wrong"
        onInput={(event) => {
          const next = event.currentTarget.value;
          try {
            change(next, next.trim() ? (JSON.parse(next) as Json) : null);
            setWrong("");
          } catch (error) {
            change(next, undefined);
            setWrong((error as Error).message);
          }
        }} />
      <p id="json-wrong" class="tone-failed small">{wrong}</p>
    </div>
  );
}

function CommandDialog({ job, action: name, step: given, entries, close, changed }: Props) {
  const action = ACTIONS[name] as Action;
  const steps = entries.filter((entry) => name === "skip" ? ["FAILED", "PENDING", "RUNNING"].includes(entry.state) : name === "abandon_undo" ? /COMPENSAT|FAILED/.test(entry.state) : true);
  const start = name === "retry" ? (given ?? "") : (given && steps.some((each) => each.id === given) ? given : (job.failure?.step || (steps.at(-1)?.id ?? "")));
  const [step, setStep] = useState(start);
  const [output, setOutput] = useState<{ text: string; value: Json | undefined }>({ text: "null", value: null });
  const wrong = (action.step && !step) || output.value === undefined;
  return (
    <Ask title={`${action.text}: ${job.name}`} verb={action.verb} danger={action.danger ?? false} disabled={wrong ?? false} needsReason={action.step ?? false} close={close}
      run={async (reason) => {
        const body: Record<string, unknown> = { reason };
        if (step) body.step = step;
        if (name === "skip") body.output = output.value;
        changed(await post<JobDetail>(`jobs/${part(job.id)}/${name}`, body));
        toast(`${action.text}: accepted`);
      }}>
      <p>{action.says}</p>
      {name === "retry" && <StepChoice entries={entries} value={step} choose={setStep} label="From which step" any="where it failed" />}
      {action.step && <StepChoice entries={steps} value={step} choose={setStep} label="Which step" />}
      {name === "skip" && <JsonField label="The result that the step is said to have had, as JSON" text={output.text} change={(text, value) => setOutput({ text, value })} />}
    </Ask>
  );
}

function SendDialog({ job, close, changed }: Props) {
  const [topic, setTopic] = useState("");
  const [payload, setPayload] = useState<{ text: string; value: Json | undefined }>({ text: "null", value: null });
  return (
    <Ask title={`Send a message to ${job.name}`} verb="Send it" reason={null} disabled={!topic || payload.value === undefined} close={close}
      run={async () => {
        changed(await post<JobDetail>(`jobs/${part(job.id)}/send`, { topic, payload: payload.value }));
        toast("Sent");
      }}>
      <p>{ACTIONS.send?.says}</p>
      <div class="field"><label for="send-topic">Topic</label><input id="send-topic" value={topic} onInput={(event) => setTopic(event.currentTarget.value)} /></div>
      <JsonField label="Message, as JSON" text={payload.text} change={(text, value) => setPayload({ text, value })} />
    </Ask>
  );
}

interface ForkPreview {
  before: string;
  refused: string | null;
  entries: { id: string; seq: number; kind: string; outcome: "reused" | "anew"; why: string }[];
  effects: { no: number; step: string; what: string; outcome: "skipped" | "repeats" | "cancelled"; why: string }[];
}

function ForkDialog({ job, step, entries, close }: Props) {
  const steps = entries.filter((entry) => entry.kind !== "undo");
  const [before, setBefore] = useState(step ?? (job.failure?.step || (steps[0]?.id ?? "")));
  const [preview, setPreview] = useState<ForkPreview | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const editable = may("jobs.edit") && !job.large.input && argumentsOf(job.input) !== null;
  const original = pretty(argumentsOf(job.input));
  const [edited, setEdited] = useState<{ text: string; value: Json | undefined }>({ text: original, value: argumentsOf(job.input) });
  useEffect(() => {
    setPreview(null);
    setProblem(null);
    if (!before) return;
    const mine = new AbortController();
    get<ForkPreview>(`jobs/${part(job.id)}/fork`, { before }, mine.signal).then(setPreview, (error: Problem) => {
      if (!mine.signal.aborted) setProblem(error);
    });
    return () => mine.abort();
  }, [before]);
  const changes = edited.value === undefined ? [] : changesOf(argumentsOf(job.input), edited.value);
  const wrong = misplaced(changes);
  return (
    <Ask title={`Fork ${job.name}`} verb="Fork it" wide disabled={!before || !!preview?.refused || edited.value === undefined || wrong !== ""} close={close}
      run={async (reason) => {
        const copy = await post<JobDetail>(`jobs/${part(job.id)}/fork`, { before, reason, ...(changes.length > 0 ? { changes } : {}) });
        toast("Forked into a new job");
        go(`/jobs/${copy.id}`);
      }}>
      <p>{ACTIONS.fork?.says}</p>
      <StepChoice entries={steps} value={before} choose={setBefore} label="Everything from this step on is done anew" />
      {problem && <Trouble problem={problem} />}
      {preview && <ForkPlan preview={preview} />}
      {editable && <JsonField label="Arguments, if others are wanted" text={edited.text} change={(text, value) => setEdited({ text, value })} />}
      {wrong && <p class="tone-failed small" role="alert">{wrong}</p>}
      {changes.length > 0 && !wrong && <Diff before={original} after={pretty(edited.value)} names={["this job", "the fork"]} />}
      {editable && hasMarker(job.input) && <p class="small muted">What is <code>[removed]</code> here is stored: the fork gets it as it is, unless you write another value.</p>}
    </Ask>
  );
}

/** The arguments by name, if a job was submitted with such. */
function argumentsOf(input: Json): Json {
  if (input !== null && typeof input === "object" && !Array.isArray(input)) return input;
  return null;
}

const FATES: Record<string, [glyph: string, tone: string, text: string]> = {
  repeats: ["↻", "retrying", "happens again"],
  skipped: ["✓", "done", "does not happen again"],
  cancelled: ["–", "off", "is left"],
};

/** Which results are kept, and what becomes of each effect. */
function ForkPlan({ preview }: { preview: ForkPreview }) {
  const reused = preview.entries.filter((each) => each.outcome === "reused").length;
  const anew = preview.entries.length - reused;
  const most = 40;
  return (
    <div class="plan" aria-live="polite">
      {preview.refused && <p class="tone-failed">✗ {preview.refused}</p>}
      <p><strong class="num">{reused}</strong> results are kept, <strong class="num">{anew}</strong> steps are done anew.</p>
      {preview.effects.length === 0 && <p class="muted">No effect of it is recorded: nothing can happen twice.</p>}
      <ul aria-label="What becomes of its effects">
        {preview.effects.slice(0, most).map((each) => {
          const [glyph, tone, text] = FATES[each.outcome] ?? ["·", "off", each.outcome];
          return (
            <li key={each.no}>
              <span class={`tone-${tone}`} aria-hidden="true">{glyph}</span>
              <bdi>{each.what}</bdi>
              <strong>{text}</strong>
              <span class="muted clip" title={each.why}>{each.why}</span>
            </li>
          );
        })}
        {preview.effects.length > most && <li class="muted">and {preview.effects.length - most} more</li>}
      </ul>
    </div>
  );
}
