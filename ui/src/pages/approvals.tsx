// Approvals: what exactly will be done if I say yes?
import { useEffect, useState } from "preact/hooks";

import { type Approval, type Json, may, newKey, type Page, part, post, Problem, session, signIn } from "../api";
import { duration, now, plural, shortId } from "../format";
import { useKeys } from "../keys";
import { useRead } from "../live";
import { Ago, announce, Ask, Choice, Empty, Loading, PageHead, Risk, toast, Trouble, useTitle } from "../parts/basics";
import { changesOf, hasAccount, hasMarker, misplaced } from "../parts/changes";
import { Diff } from "../parts/diff";
import { pretty } from "../parts/payload";
import { go, Link, query, setQuery } from "../router";
import { State } from "../status";

type Asked = "approve" | "reject" | "edit" | "delegate";

const LEVELS = ["LOW", "MEDIUM", "HIGH", "CRITICAL"];

/** Whether it may be approved together with others: never from HIGH on, nor what cannot be undone. */
const isPlain = (approval: Approval): boolean => approval.state === "PENDING" && approval.may_decide.ok && !approval.alone && may("approvals.decide");

export function ApprovalsPage() {
  useTitle("Approvals");
  const which = query.value.get("state") === "all" ? "all" : "pending";
  const job = query.value.get("job");
  const read = useRead<Page<Approval>>(`approvals?state=${which === "all" ? "all" : "PENDING"}&limit=200`, { topics: ["approvals"], gap: 800 });
  const all = (read.data?.items ?? []).filter((each) => !job || each.job === job);
  const mine = all.filter((each) => each.may_decide.ok).sort((a, b) => LEVELS.indexOf(b.risk) - LEVELS.indexOf(a.risk)); // the newest first of each
  const others = all.filter((each) => !each.may_decide.ok);
  const ordered = [...mine, ...others];
  const [at, setAt] = useState(0);
  const [asked, setAsked] = useState<[Asked, Approval] | null>(null);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const [several, setSeveral] = useState(false);
  const current = ordered[Math.min(at, ordered.length - 1)];
  const plain = mine.filter(isPlain);
  const chosen = plain.filter((each) => picked.has(each.id)); // those that others have decided since are gone
  const pick = (approval: Approval | undefined) => {
    if (!approval || !isPlain(approval)) return;
    const next = new Set(picked);
    if (!next.delete(approval.id)) next.add(approval.id);
    setPicked(next);
  };
  const open = (what: Asked) => {
    if (current?.may_decide.ok && may("approvals.decide")) setAsked([what, current]);
  };
  const again = query.value.get("ask");
  useEffect(() => {
    if (!again || !read.data) return;
    const [what = "", id] = again.split(" ");
    const found = mine.find((each) => each.id === id);
    if (found) setAsked([what as Asked, found]);
    setQuery({ ask: null });
  }, [again, read.data]);
  useEffect(() => {
    if (mine.length > 0) announce(`${mine.length} approvals wait for you`);
  }, [mine.length]);
  useKeys("Approvals", {
    j: ["Next approval", () => setAt(Math.min(at + 1, ordered.length - 1))],
    k: ["Previous approval", () => setAt(Math.max(at - 1, 0))],
    a: ["Approve", () => open("approve")],
    r: ["Reject with a reason", () => open("reject")],
    e: ["Approve with other arguments", () => open("edit")],
    d: ["Delegate", () => open("delegate")],
    x: ["Select it, to approve several at once", () => pick(current)],
    o: ["Open its job", () => current && go(`/jobs/${current.job}`)],
  });
  const says = !read.data ? "" : which === "all" ? `${plural(all.length, "approval")}, newest first` : mine.length === 0 ? (others.length === 0 ? "Nothing waits for anybody." : `Nothing waits for you; ${plural(others.length, "approval")} for others.`) : `${mine.length} for you${others.length > 0 ? `, ${others.length} for others` : ""}.`;
  return (
    <>
      <PageHead title="Approvals" says={says}>
        {job && <button class="button small" onClick={() => setQuery({ job: null })}>Of all jobs</button>}
        <Choice label="Which approvals" options={[["pending", "Pending"], ["all", "All"]]} value={which} choose={(value) => setQuery({ state: value === "all" ? "all" : null })} />
      </PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading />}
      {read.data && all.length === 0 && <Empty title="Nothing to decide" code={`@app.job
async def offer(ctx: JobContext, usd: int) -> str:
    yes = await ctx.approve("Send this offer?", details={"usd": usd})
    return yes.by[0]`}>A step that asks for an approval waits here, with exactly what it will do, until somebody decides. So do mails, Slack and the command line: the first answer counts.</Empty>}
      {plain.length > 1 && (
        <div class={chosen.length > 0 ? "selection" : "selection quiet"} role="region" aria-label="Several approvals">
          <label class="check-label"><input type="checkbox" checked={chosen.length === plain.length} onChange={() => setPicked(new Set(chosen.length === plain.length ? [] : plain.map((each) => each.id)))} /> {chosen.length > 0 ? <strong class="num">{chosen.length} selected</strong> : <>Select all of low risk</>}</label>
          {chosen.length > 0 && <button class="button small primary" onClick={() => setSeveral(true)}>Approve {plural(chosen.length, "action")}…</button>}
          <span class="spring" />
          {mine.length > plain.length && <span class="muted small">{plural(mine.length - plain.length, "other")} of higher risk: one at a time</span>}
          {chosen.length > 0 && <button class="text-button" onClick={() => setPicked(new Set())}>Clear</button>}
        </div>
      )}
      <div class="cards">
        {ordered.map((each, index) => <Card key={each.id} approval={each} active={each === current} focus={() => setAt(index)} ask={(what) => setAsked([what, each])} picked={plain.length > 1 && isPlain(each) ? picked.has(each.id) : null} pick={() => pick(each)} />)}
      </div>
      {several && <DecideSeveral approvals={chosen} close={() => setSeveral(false)} done={() => { setPicked(new Set()); read.again(); }} />}
      {asked && <Decide what={asked[0]} approval={asked[1]} close={() => setAsked(null)} done={() => { setAsked(null); read.again(); }} stale={read.again} />}
    </>
  );
}

/** A name without the mark of what an agent calls. */
export const plainName = (text: string): string => text.replace(/^call:(?:tool:|approve:|chat:)?/, "");

/** Whether it asks if a job that has failed is to be undone: `on_failure="ask"`. */
function asksToUndo(approval: Approval): boolean {
  return approval.action.step === "on_failure";
}

function saysYesTo(approval: Approval): string {
  if (asksToUndo(approval)) return "Why it is asked, and what would be undone";
  return approval.action.step.startsWith("approve#") ? "What you say yes to" : "What will run";
}

/** What will run; account numbers are shown whole on request, and each time is audited. */
function Call({ approval, look = "" }: { approval: Approval; look?: string }) {
  const [seen, setSeen] = useState<{ hash: string; arguments: Json } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const { hash, arguments: given } = approval.action;
  const open = seen?.hash === hash;
  const reveal = async () => {
    setProblem(null);
    try {
      setSeen({ hash, ...(await post<{ arguments: Json }>(`approvals/${part(approval.id)}/reveal`, {})) });
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, "", String(error)));
    }
  };
  return (
    <>
      <pre class={look} tabIndex={0}><bdi>{callText(approval, open ? seen.arguments : given)}</bdi></pre>
      {hasAccount(given) && may("approvals.reveal") && (
        <p class="small muted">
          {open ? <>The audit log says that you have seen it. <button type="button" class="text-button" onClick={() => setSeen(null)}>Hide it</button></> : <button type="button" class="button small" onClick={reveal}>Show the whole number</button>}
        </p>
      )}
      {problem && <Trouble problem={problem} />}
    </>
  );
}

function callText(approval: Approval, given: Json = approval.action.arguments): string {
  const name = plainName(approval.action.step.replace(/[#?$].*$/, ""));
  if (name === "approve" || asksToUndo(approval)) return pretty(given);
  if (given === null || typeof given !== "object") return `${name}(${given === null ? "" : JSON.stringify(given)})`;
  const parts = Array.isArray(given) ? given.map((value) => JSON.stringify(value)) : Object.entries(given).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  return `${name}(${parts.join(", ")})`;
}

interface CardProps {
  approval: Approval;
  active: boolean;
  focus: () => void;
  ask: (what: Asked) => void;
  /** null: it cannot be decided together with others. */
  picked: boolean | null;
  pick: () => void;
}

function Card({ approval, active, focus, ask, picked, pick }: CardProps) {
  const yes = approval.votes.filter((vote) => vote.is_current && vote.verdict === "approve");
  const pending = approval.state === "PENDING";
  const decidable = approval.may_decide.ok && may("approvals.decide");
  const left = approval.expires_at !== null ? approval.expires_at - now.value : null;
  return (
    <section class={`card approval${active ? " active" : ""}`} aria-label={approval.title} onFocusCapture={focus} onPointerDown={focus}>
      <div class="approval-line">
        {picked !== null && <input type="checkbox" aria-label={`Select ${approval.title}`} checked={picked} onChange={pick} />}
        <Risk level={approval.risk} />
        <h2><bdi>{plainName(approval.title)}</bdi></h2>
        {!pending && <State state={approval.state} />}
        <span class="spring" />
        <span class="muted num"><Ago at={approval.asked_at} /></span>
      </div>
      <p class="approval-about muted">
        asked by job <Link to={`/jobs/${approval.job}`} class="mono">{shortId(approval.job)}</Link>{approval.requester && <> of <bdi>{approval.requester}</bdi></>}
        {pending && left !== null && <> · {left > 0 ? <span class={left < 900 ? "tone-retrying" : ""}>expires in {duration(left)}</span> : "expired"}</>}
        {approval.needed > 1 && <> · {yes.length} of {approval.needed} said yes</>}
        {approval.written_by_program && <> · <strong>written by a program</strong></>}
        {approval.escalated && <> · escalated</>}
      </p>
      {approval.description && <p><bdi>{approval.description}</bdi></p>}
      <div class="will"><span class="muted">{saysYesTo(approval)}</span><Call approval={approval} /></div>
      {approval.reasons.length > 0 && <p class="small muted">Why it is asked: {approval.reasons.join("; ")}</p>}
      {approval.edits.map((edit, index) => (
        <div key={index} class="edit">
          <p class="small"><bdi>{edit.person}</bdi> edited it <Ago at={edit.at} />{edit.raised && <strong class="tone-attention">, which raised the risk</strong>}</p>
          <Diff before={pretty(edit.before)} after={pretty(edit.after)} />
        </div>
      ))}
      {approval.votes.length > 0 && (
        <ul class="votes">
          {approval.votes.map((vote, index) => (
            <li key={index} class={vote.is_current ? "" : "faded"}>
              <span class={vote.verdict === "approve" ? "tone-done" : "tone-failed"} aria-hidden="true">{vote.verdict === "approve" ? "✓" : "✗"}</span>
              <bdi>{vote.person}</bdi> {vote.verdict === "approve" ? "approved" : "rejected"} {vote.channel && `by ${vote.channel}`} <Ago at={vote.at} /> {vote.reason && <bdi class="muted">“{vote.reason}”</bdi>}{!vote.is_current && <span class="muted"> (before an edit)</span>}
            </li>
          ))}
        </ul>
      )}
      {approval.delegates.map(([from, to]) => <p key={from} class="small muted">{from} delegated to {to}</p>)}
      {pending && (decidable ? (
        <div class="actions">
          <button class="button primary" onClick={() => ask("approve")}>Approve <kbd>a</kbd></button>
          <button class="button" onClick={() => ask("reject")}>Reject… <kbd>r</kbd></button>
          {may("approvals.edit") && !asksToUndo(approval) && <button class="button" onClick={() => ask("edit")}>Edit… <kbd>e</kbd></button>}
          <button class="button" onClick={() => ask("delegate")}>Delegate… <kbd>d</kbd></button>
        </div>
      ) : <p class="muted small">{approval.may_decide.why || (may("approvals.decide") ? "You cannot decide this." : "You may look at approvals, but not decide.")}</p>)}
    </section>
  );
}

interface DecideProps {
  what: Asked;
  approval: Approval;
  close: () => void;
  done: () => void;
  stale: () => void;
}

function Decide({ what, approval, close, done, stale }: DecideProps) {
  const original = pretty(approval.action.arguments);
  const [text, setText] = useState(original);
  const [to, setTo] = useState("");
  let edited: Json | undefined;
  try {
    edited = JSON.parse(text) as Json;
  } catch {
    edited = undefined;
  }
  const changes = edited === undefined ? [] : changesOf(approval.action.arguments, edited);
  const wrong = misplaced(changes);
  const run = async (reason: string) => {
    try {
      if (what === "delegate") {
        await post(`approvals/${part(approval.id)}/delegate`, { to: to.trim(), reason });
        toast(`Delegated to ${to.trim()}`);
      } else {
        const verdict = what === "reject" ? "reject" : "approve";
        const answer = await post<Approval>(`approvals/${part(approval.id)}/decide`, { verdict, action_hash: approval.action.hash, reason, ...(what === "edit" ? { changes } : {}) });
        toast(outcome(answer, verdict));
      }
    } catch (error) {
      if (error instanceof Problem && error.code === "reauthenticate") {
        go(`/inbox?ask=${part(`${what} ${approval.id}`)}`, true); // after it, the same dialog is open
        signIn(true);
        return "stay";
      }
      if (error instanceof Problem && error.status === 409) {
        stale();
        throw new Problem(409, error.code, `${kindly(error)} The list shows how it is now.`);
      }
      throw error;
    }
    done();
  };
  const titles: Record<Asked, [string, string]> = {
    approve: ["Approve", "Approve"],
    reject: ["Reject", "Reject it"],
    edit: ["Approve with other arguments", "Approve as edited"],
    delegate: ["Delegate", "Delegate"],
  };
  const [title, verb] = titles[what];
  const unchanged = what === "edit" && changes.length === 0;
  return (
    <Ask title={`${title}: ${approval.title}`} verb={verb} danger={what === "reject"} needsReason={what === "reject"} disabled={(what === "edit" && (edited === undefined || unchanged || wrong !== "")) || (what === "delegate" && !to.trim())} run={run} close={close}>
      {what === "approve" && <><p>{asksToUndo(approval) ? "The job is undone, once" : "Exactly this runs, once"}{approval.needed > 1 ? `, when ${approval.needed} people have said yes` : ""}:</p><Call approval={approval} look="will-run" /></>}
      {what === "reject" && <p>{asksToUndo(approval) ? "Nothing is undone. The job stays parked until somebody resumes, retries, undoes or cancels it." : "The step does not run. Its job is told so, with your reason."}</p>}
      {what === "delegate" && <><p>Somebody else decides instead of you, and is told so. You may then no longer decide.</p><div class="field"><label for="delegate-to">To whom</label><input id="delegate-to" value={to} onInput={(event) => setTo(event.currentTarget.value)} /></div></>}
      {what === "edit" && (
        <>
          <p>Other arguments are another action: votes so far do not count for it, and a higher risk is asked about again.</p>
          <div class="field"><label for="edit-arguments">Arguments, as JSON</label><textarea id="edit-arguments" class="mono" rows={8} spellcheck={false} value={text} aria-invalid={edited === undefined} onInput={(event) => setText(event.currentTarget.value)} /></div>
          {edited === undefined ? <p class="tone-failed small">This is not JSON yet.</p> : wrong ? <p class="tone-failed small" role="alert">{wrong}</p> : !unchanged && <Diff before={original} after={pretty(edited)} names={["as asked", "what will run"]} />}
          {hasMarker(approval.action.arguments) && <p class="small muted">What is <code>[removed]</code> here is stored: it runs as it is, unless you write another value.</p>}
        </>
      )}
      {approval.needs_recent_sign_in && what !== "delegate" && <SignedIn risk={approval.risk} />}
    </Ask>
  );
}

const RECENT = 900; // seconds, unless the server says otherwise

/** Says before the button is pressed that it leads to a sign-in, and how to get through it. */
function SignedIn({ risk }: { risk: string }) {
  const at = session.value?.principal.signed_in_at ?? null;
  if (at !== null && now.value - at < RECENT) return <p class="small muted">A decision about {risk} needs a sign-in within the last 15 minutes.</p>;
  return (
    <p class="small">
      A decision about {risk} needs a sign-in within the last 15 minutes{at !== null && <>, and yours was {duration(now.value - at)} ago</>}: you are asked to sign in, and then return here.
      Sign in as you did before. If that was by a link, which works once, <code>perdure tokens sign-in</code> prints a new one.
    </p>
  );
}

interface Fate {
  approval: Approval;
  /** Of this one answer: sent again, it counts once. */
  key: string;
  done: string;
  refused: string;
}

/** Approves several, each by an answer of its own that names the action that was shown. */
function DecideSeveral({ approvals, close, done }: { approvals: Approval[]; close: () => void; done: () => void }) {
  const [fates, setFates] = useState<Fate[]>(() => approvals.map((approval) => ({ approval, key: newKey(), done: "", refused: "" })));
  const [over, setOver] = useState(false);
  const open = fates.filter((each) => !each.done);
  const run = async (reason: string) => {
    const told: Fate[] = [];
    for (const fate of fates) {
      if (fate.done) {
        told.push(fate);
        continue;
      }
      try {
        const { approval, key } = fate;
        const answer = await post<Approval>(`approvals/${part(approval.id)}/decide`, { verdict: "approve", action_hash: approval.action.hash, reason }, key);
        told.push({ ...fate, done: outcome(answer, "approve"), refused: "" });
      } catch (error) {
        told.push({ ...fate, refused: error instanceof Problem ? kindly(error) : String(error) });
      }
      setFates([...told, ...fates.slice(told.length)]);
    }
    done();
    if (told.every((each) => each.done)) {
      toast(`Approved ${plural(told.length, "action")}`);
      return;
    }
    setOver(true);
    return "stay" as const;
  };
  return (
    <Ask title={`Approve ${plural(fates.length, "action")}`} verb={over ? `Try ${plural(open.length, "action")} again` : `Approve ${plural(fates.length, "action")}`} wide disabled={open.length === 0} run={run} close={close}>
      <p>Exactly these run, each once. Whatever was edited meanwhile is refused.</p>
      <ol class="several">
        {fates.map(({ approval, done: well, refused }) => (
          <li key={approval.id}>
            <span class="several-line"><Risk level={approval.risk} /><strong class="clip"><bdi>{approval.title}</bdi></strong><span class="spring" />{well ? <span class="tone-done">✓ {well}</span> : refused ? <span class="tone-failed">✗ {refused}</span> : <span class="muted mono">{shortId(approval.job)}</span>}</span>
            <pre tabIndex={0}><bdi>{callText(approval)}</bdi></pre>
          </li>
        ))}
      </ol>
    </Ask>
  );
}

function outcome(answer: Approval, verdict: string): string {
  if (verdict === "reject") return "Rejected";
  if (answer.state === "APPROVED") return "Approved: the job continues";
  const yes = answer.votes.filter((vote) => vote.is_current && vote.verdict === "approve").length;
  return yes > 0 ? `Approved by ${yes} of ${answer.needed}; others must, too` : "Edited; others are asked about it";
}

function kindly(problem: Problem): string {
  const text = problem.message;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!]$/.test(text) ? "" : "."}`;
}

