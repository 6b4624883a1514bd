// Effects: what may or may not have happened, and what people say about it.
import { useState } from "preact/hooks";

import { type Effect, type Json, may, type Page, part, post } from "../api";
import { plural, shortId } from "../format";
import { useRead } from "../live";
import { Ago, Ask, At, Empty, Loading, PageHead, toast, Trouble, useTitle } from "../parts/basics";
import { Payload, pretty } from "../parts/payload";
import { Link } from "../router";
import { State } from "../status";

export function EffectsPage() {
  useTitle("Effects");
  const read = useRead<Page<Effect>>("effects?state=open", { topics: ["jobs"], gap: 2000 });
  const all = read.data?.items ?? [];
  const doubtful = all.filter((effect) => effect.state === "IN_DOUBT");
  const open = all.filter((effect) => effect.state !== "IN_DOUBT");
  return (
    <>
      <PageHead title="Effects" says={!read.data ? "" : doubtful.length > 0 ? `Nobody knows whether ${plural(doubtful.length, "effect")} happened. Look at the receiver, then say so.` : "Nothing is in doubt."} />
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading />}
      {read.data && all.length === 0 && <Empty title="Every effect is known">An effect is in doubt when a call to the outside world ended without an answer: its timeout, a killed worker. It then waits here for a person, unless the receiver can be asked or called again with the same key.</Empty>}
      <div class="cards">{doubtful.map((effect) => <EffectCard key={effect.key} effect={effect} done={read.again} where />)}</div>
      {open.length > 0 && <><h2 class="section">Under way</h2><div class="cards">{open.map((effect) => <EffectCard key={effect.key} effect={effect} done={read.again} where />)}</div></>}
    </>
  );
}

type Outcome = "happened" | "did_not_happen" | "compensate";

const SAYS: Record<Outcome, [title: string, text: string, verb: string]> = {
  happened: ["It happened", "The call is recorded as done and is not made again. The step continues with the result below.", "It happened"],
  did_not_happen: ["It did not happen", "The call is recorded as failed. If the step still wants it, it is made again with a new key.", "It did not happen"],
  compensate: ["Undo it", "The job gives up and undoes what it did, this effect too if it has an undo.", "Undo the job"],
};

export function EffectCard({ effect, done, where }: { effect: Effect; done: () => void; where?: boolean }) {
  const [ask, setAsk] = useState<Outcome | null>(null);
  const [more, setMore] = useState(false);
  const settle = effect.state === "IN_DOUBT" && may("effects.resolve");
  return (
    <section class={`card effect${effect.state === "IN_DOUBT" ? " tone-edge-attention" : ""}`} aria-label={`${effect.kind} ${effect.target}`}>
      <div class="effect-line">
        <State state={effect.state} />
        <strong>{effect.kind}</strong>
        <bdi class="clip">{effect.target}</bdi>
        <span class="spring" />
        {where && <Link to={`/jobs/${effect.job}?tab=effects`} class="mono">{shortId(effect.job)}</Link>}
        <span class="mono muted">{effect.step}</span>
        <span class="num muted"><At at={effect.called_at} seconds /></span>
        <button class="text-button" aria-expanded={more} onClick={() => setMore(!more)}>{more ? "Less" : "More"}</button>
      </div>
      {effect.state === "IN_DOUBT" && <p class="says">Nobody knows whether it happened. It was called <Ago at={effect.called_at} />{effect.error ? <>; <bdi>{effect.error.message}</bdi></> : ", and no answer is known"}. {effect.problem}</p>}
      {settle && (
        <div class="actions">
          <button class="button" onClick={() => setAsk("happened")}>It happened…</button>
          <button class="button" onClick={() => setAsk("did_not_happen")}>It did not…</button>
          <button class="button" onClick={() => setAsk("compensate")}>Undo…</button>
        </div>
      )}
      {more && (
        <>
          <ol class="ledger" aria-label="The life of this effect">
            <li><span>intended</span><At at={effect.called_at} seconds /></li>
            {effect.state !== "INTENT" && <li><span>{effect.state.toLowerCase().replace("_", " ")}</span>{effect.ended_at ? <At at={effect.ended_at} seconds /> : null}</li>}
            {effect.proof && <li><span>known by</span><bdi>{effect.proof}</bdi></li>}
            <li><span>undo</span>{effect.undo ? <span class="mono">{effect.undo}</span> : effect.stays ? "needs none" : "none of its own"}</li>
          </ol>
          <dl class="facts small"><div><dt>Idempotency key</dt><dd class="mono id">{effect.key}</dd></div><div><dt>Generation</dt><dd class="num">{effect.generation}</dd></div></dl>
          <div class="two"><Payload title="Details" value={effect.details} /><Payload title="Result" value={effect.result} /></div>
        </>
      )}
      {ask && <Settle effect={effect} outcome={ask} close={() => setAsk(null)} done={done} />}
    </section>
  );
}

function Settle({ effect, outcome, close, done }: { effect: Effect; outcome: Outcome; close: () => void; done: () => void }) {
  const [title, says, verb] = SAYS[outcome];
  const [text, setText] = useState(pretty(effect.result ?? null));
  let result: Json | undefined;
  try {
    result = JSON.parse(text || "null") as Json;
  } catch {
    result = undefined;
  }
  return (
    <Ask title={`${title}: ${effect.kind} ${effect.target}`} verb={verb} danger={outcome === "compensate"} reason="How do you know? For the log" needsReason disabled={outcome === "happened" && result === undefined} close={close}
      run={async (reason) => {
        await post(`effects/${part(effect.key)}/resolve`, { outcome, reason, ...(outcome === "happened" ? { result } : {}) });
        toast("Settled");
        done();
      }}>
      <p>{says}</p>
      {outcome === "happened" && <div class="field"><label for="effect-result">What the receiver answered, as JSON</label><textarea id="effect-result" class="mono" rows={3} spellcheck={false} value={text} aria-invalid={result === undefined} onInput={(event) => setText(event.currentTarget.value)} /></div>}
    </Ask>
  );
}
