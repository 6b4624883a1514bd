// What an agent said and did: model calls, and the tool calls between them.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { type Approval, type Failure, get, type JobDetail, type Json, type Large, may, type Page, part, type Piece, type Problem } from "../api";
import { count, duration, now, plural, usd } from "../format";
import { useCalm, useLive, useRead } from "../live";
import { Ago, At, Copy, Loading, Trouble } from "../parts/basics";
import { Payload, pretty } from "../parts/payload";
import { unwrapped } from "../parts/timeline_model";
import { Link, setQuery } from "../router";
import { State } from "../status";
import { plainName } from "./approvals";
import { standing } from "./job_tabs";

interface Part {
  type: string;
  content?: Json;
  id?: string;
  name?: string;
  arguments?: Json;
  response?: Json;
}

interface Message {
  role: string;
  parts: Part[];
}

interface ModelTurn {
  model?: string;
  provider?: string;
  answered_by?: string;
  agent?: string;
  finish_reason?: string;
  cost_usd?: number | null;
  usage?: Record<string, number>;
  input?: Message[];
  output?: Message[];
}

export interface Turn {
  kind: "model" | "tool" | "question" | "step";
  seq: number;
  step: string;
  name: string;
  state: string;
  call_id?: string;
  attempt?: number;
  started_at?: number | null;
  ended_at?: number | null;
  model?: ModelTurn | null;
  arguments?: Json;
  answer?: Json;
  large?: Record<string, Large>;
  error?: Failure | null;
}

const SOME = 100; // journal entries in which the first model call is looked for
const SHOWN = 60; // model calls that are drawn at first

/** Whether a job has called a model; asked when the page has nothing else to do. */
export function useHasTranscript(job: JobDetail, stamp: string): boolean {
  const [found, setFound] = useState(false);
  useEffect(() => {
    if (found || job.entries === 0) return;
    const timer = setTimeout(() => {
      get<Page<Turn>>(`jobs/${part(job.id)}/transcript`, { limit: SOME }).then((page) => setFound(page.items.length > 0), () => {});
    }, 200);
    return () => clearTimeout(timer);
  }, [stamp]);
  return found;
}

/** All turns; read again from the first that was not over. */
function useTurns(job: JobDetail, stamp: string): { turns: Turn[] | null; problem: Problem | null } {
  const [turns, setTurns] = useState<Turn[] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const known = useRef<Turn[]>([]);
  const busy = useRef(false);
  const load = async () => {
    if (busy.current) return;
    busy.current = true;
    const open = known.current.findIndex((turn) => !turn.ended_at);
    const kept = open < 0 ? known.current : known.current.slice(0, open);
    try {
      const found: Turn[] = [];
      let after: string | null = kept.length > 0 ? String(kept.at(-1)?.seq ?? 0) : null;
      do {
        const page: Page<Turn> = await get<Page<Turn>>(`jobs/${part(job.id)}/transcript`, { after, limit: 200 });
        found.push(...page.items);
        after = page.next;
      } while (after !== null);
      known.current = [...kept, ...found];
      setTurns(known.current);
      setProblem(null);
    } catch (error) {
      setProblem(error as Problem);
    }
    busy.current = false;
  };
  const calm = useCalm(() => void load(), 1000);
  useEffect(calm, [stamp]);
  useLive([], (event) => {
    if (job.ended_at === null && (event === "job" || event === "jobs" || event === "stale")) calm();
  });
  return { turns, problem };
}

interface Round {
  turn: Turn;
  /** What was done until the next model call. */
  between: Turn[];
  /** The answers of tools that the next call passed on, by the ids of their calls. */
  answers: Map<string, Json>;
}

/** Whether a message says something new: some frameworks repeat their instructions with each call. */
function isNews(message: Message, instructions: Set<string>): boolean {
  if (message.role !== "system") return true;
  const text = JSON.stringify(message.parts);
  if (instructions.has(text)) return false;
  instructions.add(text);
  return true;
}

export function roundsOf(turns: Turn[]): Round[] {
  const rounds: Round[] = [];
  const instructions = new Set<string>();
  for (const given of turns) {
    const turn = given.model?.input ? { ...given, model: { ...given.model, input: given.model.input.filter((message) => isNews(message, instructions)) } } : given;
    const last = rounds.at(-1);
    if (turn.kind === "model") {
      if (last) for (const message of turn.model?.input ?? []) for (const each of message.parts) if (each.type === "tool_call_response") last.answers.set(each.id ?? "", each.response ?? null);
      rounds.push({ turn, between: [], answers: new Map() });
    } else last?.between.push(turn);
  }
  return rounds;
}

export function Transcript({ job, stamp }: { job: JobDetail; stamp: string }) {
  const { turns, problem } = useTurns(job, stamp);
  const asked = useRead<Page<Approval>>(may("jobs.read") ? `jobs/${part(job.id)}/approvals` : null, { topics: ["approvals"], gap: 1000 });
  const rounds = useMemo(() => roundsOf(turns ?? []), [turns]);
  const [most, setMost] = useState(SHOWN);
  if (problem && !turns) return <Trouble problem={problem} />;
  if (!turns) return <Loading rows={4} />;
  if (rounds.length === 0) return <p class="muted pad">No model has been called yet.</p>;
  const hidden = Math.max(0, rounds.length - most);
  return (
    <div class="transcript">
      <Sums rounds={rounds} />
      {hidden > 0 && <button class="button small" onClick={() => setMost(most + 200)}>Show {plural(Math.min(hidden, 200), "earlier call")}</button>}
      <ol aria-label="Transcript">
        {rounds.slice(hidden).map((round, index) => <RoundView key={round.turn.seq} round={round} job={job} approvals={asked.data?.items ?? []} first={hidden + index === 0} />)}
      </ol>
    </div>
  );
}

const sum = (rounds: Round[], name: string): number => rounds.reduce((total, round) => total + (round.turn.model?.usage?.[name] ?? 0), 0);

/** All calls in one line: how many, of which model, what they used. */
function Sums({ rounds }: { rounds: Round[] }) {
  const models = [...new Set(rounds.map((round) => round.turn.model?.model).filter(Boolean))];
  const cost = rounds.reduce((total, round) => total + (round.turn.model?.cost_usd ?? 0), 0);
  const cached = sum(rounds, "cache_read_tokens");
  const tools = rounds.reduce((total, round) => total + round.between.filter((turn) => turn.kind !== "question").length, 0);
  return (
    <dl class="facts">
      <div><dt>Model</dt><dd>{models.join(", ") || "unknown"}</dd></div>
      <div><dt>Calls</dt><dd class="num">{count(rounds.length)}</dd></div>
      <div><dt>Tools</dt><dd class="num">{count(tools)}</dd></div>
      <div><dt>Tokens in</dt><dd class="num">{count(sum(rounds, "input_tokens"))}{cached > 0 && <span class="muted"> of which {count(cached)} cached</span>}</dd></div>
      <div><dt>Tokens out</dt><dd class="num">{count(sum(rounds, "output_tokens"))}</dd></div>
      {cost > 0 && <div><dt>Cost</dt><dd class="num">{usd(cost)}</dd></div>}
    </dl>
  );
}

const partsOf = (messages: Message[] | undefined, ...types: string[]): Part[] => (messages ?? []).flatMap((message) => message.parts).filter((each) => types.includes(each.type));

/** The steps of the calls that an answer asks for, in its order; then what else was done. */
function matched(round: Round): { call: Part | null; turn: Turn | null }[] {
  const calls = partsOf(round.turn.model?.output, "tool_call");
  const left = round.between.filter((turn) => turn.kind !== "question");
  const take = (fits: (turn: Turn) => boolean): Turn | null => {
    const at = left.findIndex(fits);
    return at < 0 ? null : (left.splice(at, 1)[0] ?? null);
  };
  const found = calls.map((call) => ({ call, turn: call.id ? take((turn) => turn.call_id === call.id || (turn.name === call.name && (turn.call_id ?? "").includes(call.id ?? ""))) : null }));
  for (const each of found) each.turn ??= take((turn) => turn.name === each.call.name);
  return [...found, ...left.map((turn) => ({ call: null, turn }))];
}

function RoundView({ round, job, approvals, first }: { round: Round; job: JobDetail; approvals: Approval[]; first: boolean }) {
  const { turn } = round;
  const it = turn.model ?? {};
  const said = (it.input ?? []).map((message) => ({ ...message, parts: message.parts.filter((each) => each.type !== "tool_call_response") })).filter((message) => message.parts.length > 0);
  const texts = partsOf(it.output, "text", "reasoning");
  const running = turn.state === "RUNNING" || (turn.state === "PENDING" && job.ended_at === null);
  const questions = round.between.filter((each) => each.kind === "question");
  return (
    <>
      {first && said.length === 0 && (job.input !== null || job.large.input) && <Said role="user"><Payload brief title="Input" value={job.input} large={job.large.input} /></Said>}
      {said.map((message, index) => <Said key={index} role={message.role}>{message.parts.map((each, at) => <PartText key={at} part={each} fold={message.role === "system"} />)}</Said>)}
      <li class="turn turn-assistant">
        <TurnHead role="assistant" turn={turn}>
          <span class="clip">{it.agent || it.answered_by || it.model || turn.name}</span>
          {it.usage && <span class="num muted" title="Tokens in, out">{count(it.usage.input_tokens ?? 0)}{it.usage.cache_read_tokens ? <span title="from the provider’s cache"> ({count(it.usage.cache_read_tokens)} cached)</span> : null} → {count(it.usage.output_tokens ?? 0)} tokens</span>}
          {typeof it.cost_usd === "number" && <span class="num muted">{usd(it.cost_usd)}</span>}
          {it.finish_reason && !["stop", "tool_call", "tool_calls", "end_turn", "tool_use"].includes(it.finish_reason) && <span class="tone-retrying">ended by {it.finish_reason}</span>}
        </TurnHead>
        <div class="turn-body">
          {texts.map((each, index) => <PartText key={index} part={each} fold={each.type === "reasoning"} />)}
          {running && <Streamed job={job} step={turn.step} />}
          {turn.error && <p class="tone-failed">✗ {turn.error.type.split(".").at(-1)} <bdi>{turn.error.message}</bdi></p>}
          <Asked approvals={approvals} step={turn.step} />
          {questions.map((each) => <Asked key={each.seq} approvals={approvals} step={each.step} />)}
          {matched(round).map(({ call, turn: done }, index) => <ToolCall key={call?.id || done?.step || index} call={call} turn={done} answer={round.answers.get(call?.id ?? "")} job={job} approvals={approvals} />)}
        </div>
      </li>
    </>
  );
}

const ROLES: Record<string, string> = { system: "System", user: "User", assistant: "Model", tool: "Tool" };

function TurnHead({ role, turn, children }: { role: string; turn?: Turn; children?: ComponentChildren }) {
  return (
    <div class="turn-head">
      <strong>{ROLES[role] ?? role}</strong>
      {children}
      <span class="spring" />
      {turn && turn.state !== "SUCCEEDED" && <State state={turn.state} />}
      {turn && (turn.attempt ?? 0) > 1 && <span class="tone-retrying small" title="attempts">↻{turn.attempt}</span>}
      {turn?.started_at ? <><span class="num muted">{duration((turn.ended_at ?? now.value) - turn.started_at)}</span><span class="num muted only-wide"><At at={turn.started_at} seconds /></span></> : null}
      {turn && <button class="text-button only-wide" title="Show it in the journal" onClick={() => setQuery({ tab: "journal", step: turn.step })}>{unwrapped(turn.step)}</button>}
    </div>
  );
}

function Said({ role, children }: { role: string; children: ComponentChildren }) {
  return <li class={`turn turn-${role}`}><TurnHead role={role} /><div class="turn-body">{children}</div></li>;
}

const LONG = 1200; // characters
const SHORT = 200; // of what is usually not read

function PartText({ part: each, fold }: { part: Part; fold: boolean }) {
  const text = typeof each.content === "string" ? each.content : pretty(each.content ?? each);
  if (!text.trim()) return null;
  if (text.length <= (fold ? SHORT : LONG)) return <p class="turn-text" dir="auto">{text}</p>;
  return <details class="turn-more" open={!fold}><summary>{each.type === "reasoning" ? "Reasoning" : `${plural(text.length, "character")}`}</summary><p class="turn-text" dir="auto">{text}</p></details>;
}

/** Arguments that a provider sends as text are JSON. */
function given(value: Json | undefined): Json | undefined {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value) as Json;
  } catch {
    return value;
  }
}

function callText(name: string, value: Json | undefined): string {
  if (value === undefined || value === null) return `${name}()`;
  if (typeof value !== "object" || Array.isArray(value)) return `${name}(${JSON.stringify(value)})`;
  return `${name}(${Object.entries(value).map(([key, each]) => `${key}=${JSON.stringify(each)}`).join(", ")})`;
}

/** What a tool returned, without what a framework stores around it. */
function unwrappedAnswer(value: Json | undefined): Json | undefined {
  if (value === null || typeof value !== "object" || Array.isArray(value) || !("kind" in value)) return value;
  return value.result ?? value;
}

function ToolCall({ call, turn, answer, job, approvals }: { call: Part | null; turn: Turn | null; answer: Json | undefined; job: JobDetail; approvals: Approval[] }) {
  const name = call?.name || turn?.name || "?";
  const wanted = given(call?.arguments ?? turn?.arguments);
  const large = call?.arguments === undefined ? turn?.large?.arguments : undefined;
  const text = large ? `${name}(…)` : callText(name, wanted);
  const result = answer ?? unwrappedAnswer(turn?.answer);
  const largeResult = answer === undefined ? turn?.large?.answer : undefined;
  const state = turn?.state ?? (answer !== undefined ? "SUCCEEDED" : job.ended_at === null ? "PENDING" : "SKIPPED");
  return (
    <section class="tool" aria-label={`Tool ${name}`}>
      <div class="tool-line">
        <State state={state} word={false} />
        <code class={text.length > 160 ? "clip" : "tool-call"} title={text.length > 160 ? text : undefined}><bdi>{text}</bdi></code>
        <span class="spring" />
        {(turn?.attempt ?? 0) > 1 && <span class="tone-retrying small">↻{turn?.attempt}</span>}
        {turn?.started_at ? <span class="num muted">{duration((turn.ended_at ?? job.ended_at ?? now.value) - turn.started_at)}</span> : null}
        {turn && <button class="text-button only-wide" title="Show it in the journal" onClick={() => setQuery({ tab: "journal", step: turn.step })}>step</button>}
      </div>
      {(text.length > 160 || large) && <Payload title="Arguments" value={wanted} large={large} name={name} />}
      {turn && <Asked approvals={approvals} step={turn.step} />}
      {turn?.error && turn.state !== "SUCCEEDED" && <p class="tone-failed small">✗ {turn.error.type.split(".").at(-1)} <bdi>{turn.error.message}</bdi></p>}
      {largeResult ? <Payload title="Answer" value={null} large={largeResult} name={name} /> : result !== undefined && result !== null && <Answer value={result} />}
    </section>
  );
}

function Answer({ value }: { value: Json }) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text.length <= 400) return <p class="tool-answer" dir="auto"><span class="muted" aria-hidden="true">→ </span><span class="sr">answers </span>{text}</p>;
  return <details class="turn-more"><summary>→ {text.slice(0, 120)}… <span class="muted">{plural(text.length, "character")}</span></summary><div class="code-block"><pre tabIndex={0}>{pretty(value)}</pre><Copy text={pretty(value)} /></div></details>;
}

/** What people were asked about a step, and what they said. */
function Asked({ approvals, step }: { approvals: Approval[]; step: string }) {
  const own = approvals.filter((each) => each.step === step || each.step.startsWith(`${step}?`) || each.step.startsWith(`${step}$`));
  return (
    <>
      {own.map((each) => {
        const vote = each.votes.at(-1);
        return (
          <p key={each.id} class="turn-asked">
            <State state={each.state === "PENDING" ? "WAITING_FOR_APPROVAL" : each.state} word={false} />
            <bdi>{plainName(each.title)}</bdi>
            {each.state === "PENDING" ? <><span class="tone-attention">waits for a person</span> <Link to={`/inbox?job=${each.job}`} class="button small">Decide</Link></> : vote ? <span class="muted">{vote.verdict === "approve" ? "approved" : "rejected"} by <bdi>{vote.person}</bdi> <Ago at={vote.at} />{vote.reason && <> “<bdi>{vote.reason}</bdi>”</>}{each.edits.length > 0 && ", with other arguments"}</span> : <span class="muted">{each.state.toLowerCase()}</span>}
          </p>
        );
      })}
    </>
  );
}

/** The text in a piece of a stream, in whichever form the framework has it. */
export function streamed(value: Json): string {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return "";
  const kind = String(value.event_kind ?? value.type ?? "");
  // Of the events around a text, only its beginning and its pieces count: its end has all of it again.
  if (/^(part_end|final_result|function_tool)/.test(kind) || (kind.startsWith("response.") && kind !== "response.output_text.delta")) return "";
  if (/thinking|reasoning|tool/.test(`${String(value.part_kind ?? "")} ${String(value.part_delta_kind ?? "")}`)) return "";
  for (const name of ["delta", "content_delta", "text", "content", "chunk", "part", "data"]) {
    const inner = value[name];
    if (Array.isArray(inner)) {
      const text = inner.map(streamed).join("");
      if (text) return text;
    } else if (inner !== undefined) {
      const text = streamed(inner);
      if (text) return text;
    }
  }
  return Array.isArray(value.choices) ? value.choices.map(streamed).join("") : "";
}

/** What a running call has streamed so far. */
function Streamed({ job, step }: { job: JobDetail; step: string }) {
  const [text, setText] = useState("");
  const pieces = useRef(new Map<string, Piece[]>());
  const busy = useRef(false);
  const topics = job.topics.map((each) => each.topic);
  const load = async () => {
    if (busy.current) return;
    busy.current = true;
    try {
      for (const topic of topics) {
        const known = pieces.current.get(topic) ?? [];
        for (;;) {
          const page = await get<Page<Piece>>(`jobs/${part(job.id)}/output/${part(topic)}`, { after: known.at(-1)?.position ?? 0 });
          if (page.items.length === 0) break;
          known.push(...page.items);
        }
        pieces.current.set(topic, known);
      }
      const all = [...pieces.current.values()].flatMap((each) => standing(each).filter((piece) => piece.step === step));
      setText(all.map((piece) => streamed(piece.value)).join(""));
    } catch {
      // The next change asks again.
    }
    busy.current = false;
  };
  useLive(topics.map((topic) => `output:${job.id}:${topic}`), (event) => {
    if (event === "output" || event === "stale") void load();
  });
  useEffect(() => void load(), [topics.join(" ")]);
  return text ? <p class="turn-text turn-live" dir="auto" aria-live="off">{text}<span class="caret" aria-hidden="true" /></p> : <p class="muted">Waiting for the model…</p>;
}
