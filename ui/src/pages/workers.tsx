// Workers and queues: is the fleet healthy?
import { useState } from "preact/hooks";

import { may, type Page, part, post, type Queue, type Worker } from "../api";
import { count, duration, now, plural, shortId } from "../format";
import { useRead } from "../live";
import { Ask, Empty, Loading, Meter, PageHead, toast, Trouble, useTitle } from "../parts/basics";
import { Link } from "../router";
import { summary } from "../shell";

export function WorkersPage() {
  useTitle("Workers");
  const workers = useRead<Page<Worker>>("workers", { topics: ["workers"], every: 5 });
  const queues = useRead<Page<Queue>>(may("queues.read") ? "queues" : null, { topics: ["workers", "jobs"], every: 10, gap: 2000 });
  const [drain, setDrain] = useState<Worker | null>(null);
  const all = workers.data?.items ?? [];
  const silent = all.filter((each) => each.stale);
  const slots = all.reduce((sum, each) => sum + each.concurrency, 0);
  const running = all.reduce((sum, each) => sum + each.running, 0);
  const skew = versionSkew(all);
  const says = !workers.data ? "" : all.length === 0 ? "No worker is running." : silent.length > 0 ? `${plural(silent.length, "worker")} of ${all.length} ${silent.length === 1 ? "is" : "are"} silent.` : `${plural(all.length, "worker")}, ${count(running)} of ${count(slots)} slots busy.`;
  return (
    <>
      <PageHead title="Workers" says={says} />
      {workers.problem && <Trouble problem={workers.problem} again={workers.again} />}
      {skew.length > 0 && <div class="notice"><span class="tone-retrying" aria-hidden="true">!</span> Workers run different versions of {skew.join(", ")}.</div>}
      {(summary.value?.unserved ?? []).map((each) => <div key={each} class="notice"><span class="tone-retrying" aria-hidden="true">!</span> {each}</div>)}
      {!workers.data && !workers.problem && <Loading rows={3} />}
      {workers.data && all.length === 0 && <Empty title="No worker is running" code={"perdure worker module:app"}>A worker claims jobs and runs their steps. Start one on any machine that reaches the store.</Empty>}
      {all.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Workers">
          <table class="narrow-cards">
            <thead><tr><th>Worker</th><th>Host</th><th class="num">Heartbeat</th><th>Slots</th><th>Queues</th><th>Versions</th><th class="num">Up for</th><th><span class="sr">Actions</span></th></tr></thead>
            <tbody>
              {all.map((each) => (
                <tr key={each.id}>
                  <td data-label="Worker" class="mono" title={each.id}>{may("processes.read") ? <Link to={`/processes?worker=${part(each.id)}`}>{shortId(each.id)}</Link> : shortId(each.id)}</td>
                  <td data-label="Host">{each.host || <span class="muted">–</span>} {each.pid > 0 && <span class="muted num">{each.pid}</span>}</td>
                  <td data-label="Heartbeat" class="num"><Heartbeat worker={each} /></td>
                  <td data-label="Slots"><span class="progress"><Meter value={each.running} most={each.concurrency} label={`${each.running} of ${each.concurrency} slots`} /><span class="num">{each.running}<small>/{each.concurrency}</small></span></span></td>
                  <td data-label="Queues">{each.queues.join(", ")}{each.draining && <span class="tone-retrying"> ↻ draining</span>}</td>
                  <td data-label="Versions" class="clip muted" title={versions(each)}>{versions(each)}</td>
                  <td data-label="Up for" class="num">{duration(now.value - each.started_at)}</td>
                  <td class="num">{may("workers.drain") && !each.stale && <button class="button small" onClick={() => setDrain(each)}>{each.draining ? "Resume…" : "Drain…"}</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {may("queues.read") && <Queues items={queues.data?.items ?? []} again={queues.again} problem={queues.problem} />}
      {drain && (
        <Ask title={`${drain.draining ? "Resume" : "Drain"} ${drain.host} ${drain.pid}`} verb={drain.draining ? "Resume it" : "Drain it"} danger={!drain.draining} close={() => setDrain(null)}
          run={async (reason) => {
            await post(`workers/${part(drain.id)}/${drain.draining ? "resume" : "drain"}`, { reason });
            toast(drain.draining ? "The worker claims jobs again" : "The worker takes no further jobs");
            workers.again();
          }}>
          <p>{drain.draining ? "It claims jobs again." : `It claims no further job, and releases ${plural(drain.running, "running job")} at the next safe point. Other workers continue them.`}</p>
        </Ask>
      )}
    </>
  );
}

function Heartbeat({ worker: { stale: bad, silent_for: silent } }: { worker: Worker }) {
  return <span class={bad ? "tone-failed" : ""}>{bad && <span aria-hidden="true">✗ </span>}{silent < 1 ? "now" : `${duration(Math.floor(silent))} ago`}</span>;
}

const versions = (worker: Worker): string => (worker.jobs ? worker.jobs.map((job) => `${job.name} ${job.versions.join("/")}`).join(", ") || "–" : "another version of Perdure");

/** The jobs of which workers know different versions. */
function versionSkew(workers: Worker[]): string[] {
  const known = new Map<string, Set<string>>();
  for (const worker of workers) {
    for (const { name, versions: [version = ""] } of worker.jobs ?? []) known.set(name, (known.get(name) ?? new Set()).add(version));
  }
  return [...known].filter(([, found]) => found.size > 1).map(([name]) => name);
}

function Queues({ items, again, problem }: { items: Queue[]; again: () => void; problem: import("../api").Problem | null }) {
  const [asked, setAsked] = useState<Queue | null>(null);
  return (
    <>
      <h2 class="section">Queues</h2>
      {problem && <Trouble problem={problem} again={again} />}
      {items.length === 0 && !problem && <p class="muted">No queue yet: the first job makes one.</p>}
      {items.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Queues">
          <table class="narrow-cards">
            <thead><tr><th>Queue</th><th>State</th><th class="num">Ready</th><th class="num">Waiting</th><th class="num">Running</th><th><span class="sr">Actions</span></th></tr></thead>
            <tbody>
              {items.map((each) => (
                <tr key={each.name}>
                  <td data-label="Queue"><Link to={`/jobs?q=${part(`queue:${each.name} state:open`)}`}>{each.name}</Link></td>
                  <td data-label="State">{each.paused ? <span class="tone-off">– paused</span> : <span class="tone-done">✓ open</span>}</td>
                  <td data-label="Ready" class="num">{count(each.ready)}</td>
                  <td data-label="Waiting" class="num">{count(each.waiting)}</td>
                  <td data-label="Running" class="num">{count(each.running)}</td>
                  <td class="num">{may("queues.pause") && <button class="button small" onClick={() => setAsked(each)}>{each.paused ? "Resume…" : "Pause…"}</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {asked && (
        <Ask title={`${asked.paused ? "Resume" : "Pause"} queue ${asked.name}`} verb={asked.paused ? "Resume it" : "Pause it"} close={() => setAsked(null)}
          run={async (reason) => {
            await post(`queues/${part(asked.name)}/${asked.paused ? "resume" : "pause"}`, { reason });
            toast(asked.paused ? `${asked.name} is open` : `${asked.name} is paused`);
            again();
          }}>
          <p>{asked.paused ? `Workers claim from it again: ${plural(asked.ready, "job")} ${asked.ready === 1 ? "is" : "are"} ready.` : `No worker claims from it until it is resumed. ${plural(asked.running, "running job")} ${asked.running === 1 ? "continues" : "continue"}.`}</p>
        </Ask>
      )}
    </>
  );
}
