// Metrics: how much is done, how well, and the seven figures to watch.
import type { ComponentChildren } from "preact";

import { type Metrics, part } from "../api";
import { url } from "../base";
import { bytes, compact, count, duration } from "../format";
import { useRead } from "../live";
import { Choice, Loading, Meter, PageHead, Trouble, useTitle } from "../parts/basics";
import { Chart, type Series } from "../parts/chart";
import { Link, query, setQuery } from "../router";

type Span = "60" | "360" | "1440";
const TONES: Record<string, string> = { submitted: "running", completed: "done", failed: "failed", cancelled: "off", compensated: "undo", retried: "retrying" };

export function MetricsPage() {
  useTitle("Metrics");
  const span = (query.value.get("minutes") ?? "60") as Span;
  const read = useRead<Metrics>(`metrics?minutes=${span}`, { every: 15 });
  const data = read.data;
  const of = (...names: string[]): Series[] => names.flatMap((name) => (data?.series[name] ? [{ name, tone: TONES[name] ?? "off", points: gathered(data.series[name], Number(span)) }] : []));
  const sum = (name: string) => (data?.series[name] ?? []).reduce((total, [, value]) => total + value, 0);
  return (
    <>
      <PageHead title="Metrics" says={data ? `${count(sum("completed"))} completed, ${count(sum("failed"))} failed in ${duration(Number(span) * 60)}.` : ""}>
        <Choice label="How far back" options={[["60", "1 hour"], ["360", "6 hours"], ["1440", "1 day"]]} value={span} choose={(value) => setQuery({ minutes: value })} />
      </PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!data && !read.problem && <Loading />}
      {data && (
        <>
          <Figures data={data} />
          <div class="charts">
            <Chart title="Throughput, jobs a minute" series={of("submitted", "completed")} />
            <Chart title="Trouble, jobs a minute" series={of("failed", "compensated", "cancelled")} />
          </div>
          <div class="charts">
            <Queues data={data} />
            <Steps data={data} />
          </div>
          <p class="muted small">The same and more for Prometheus: <a href={url("metrics")}>{url("metrics")}</a></p>
        </>
      )}
    </>
  );
}

/** Few enough points for the width of a chart: each is the mean of some minutes. */
function gathered(points: [number, number][], minutes: number): [number, number][] {
  const size = Math.max(1, Math.round(minutes / 72));
  const found: [number, number][] = [];
  for (let index = 0; index + size <= points.length; index += size) {
    const some = points.slice(index, index + size);
    found.push([some[0]?.[0] ?? 0, some.reduce((total, [, value]) => total + value, 0) / size]);
  }
  return found;
}

function Figures({ data }: { data: Metrics }) {
  const it = data.gauges;
  const usual = it.job_duration_usual_p95;
  const p95 = it.job_duration_seconds.p95;
  return (
    <dl class="gauges">
      <Figure name="Job duration, p95" watch={usual !== null && p95 !== null && p95 > usual * 2} hint={usual === null ? "worked time" : `usually ${duration(usual)}`}>{p95 === null ? "–" : duration(p95)}</Figure>
      <Figure name="Step failures" watch={it.step_failure_rate > 0.3} hint={it.step_failure_worst ?? "of the worst step"}>{(it.step_failure_rate * 100).toFixed(0)}<small> %</small></Figure>
      <Figure name="Attempts a step" watch={(it.step_attempts_avg ?? 0) > 2} hint={it.step_attempts_worst ?? "of the worst step"}>{it.step_attempts_avg === null ? "–" : it.step_attempts_avg.toFixed(2)}</Figure>
      <Figure name="Stuck jobs" watch={it.job_stuck_count > 0} hint="without progress"><Link to="/jobs?q=state:stuck">{count(it.job_stuck_count)}</Link></Figure>
      <Figure name="Undos that failed" watch={it.compensation_failure_count > 0} hint="a person must act">{count(it.compensation_failure_count)}</Figure>
      <Figure name="Repeats prevented" hint="effects not redone">{count(it.side_effect_duplicate_count)}</Figure>
      <Figure name="Largest checkpoint" watch={it.checkpoint_size_bytes > 10_240} hint="better below 10 kB">{bytes(it.checkpoint_size_bytes)}</Figure>
    </dl>
  );
}

const Mark = () => <span class="tone-failed" title="Somebody should look at it">! </span>;

function Figure({ name, hint, watch, children }: { name: string; hint: string; watch?: boolean; children: ComponentChildren }) {
  return (
    <div class="card">
      <dt>{name}</dt>
      <dd class="num">{watch && <Mark />}{children}</dd>
      <dd class="gauge-hint clip" title={hint}>{hint}</dd>
    </div>
  );
}

function Queues({ data }: { data: Metrics }) {
  return (
    <section class="card" aria-label="Backlog">
      <h3>Backlog</h3>
      <table>
        <thead><tr><th>What waits</th><th class="num">How many</th><th class="num">The oldest</th></tr></thead>
        <tbody>
          {data.queues.map((each) => <tr key={each.name}><td>queue <Link to={`/jobs?q=${part(`queue:${each.name} state:open`)}`}>{each.name}</Link></td><td class="num">{count(each.ready)}</td><td class="num">{each.ready > 0 ? duration(each.oldest) : "–"}</td></tr>)}
          <tr><td><Link to="/inbox">approvals</Link></td><td class="num">{count(data.approvals.count)}</td><td class="num">{data.approvals.count > 0 ? duration(data.approvals.oldest) : "–"}</td></tr>
          <tr><td><Link to="/effects">effects in doubt</Link></td><td class="num">{count(data.in_doubt.count)}</td><td class="num">{data.in_doubt.count > 0 ? duration(data.in_doubt.oldest) : "–"}</td></tr>
        </tbody>
      </table>
    </section>
  );
}

function Steps({ data }: { data: Metrics }) {
  return (
    <section class="card" aria-label="Steps">
      <h3>Steps {data.sampled_jobs > 0 && <span class="muted">of the newest {count(data.sampled_jobs)} jobs</span>}</h3>
      {data.steps.length === 0 ? <p class="muted">No step has been called yet.</p> : <table>
        <thead><tr><th>Step</th><th class="num">Calls</th><th class="num">Failed</th><th class="num">Attempts</th><th>Failures</th></tr></thead>
        <tbody>
          {data.steps.slice(0, 8).map((each) => <tr key={each.step}><td class="mono">{each.step}</td><td class="num">{compact(each.count)}</td><td class="num">{compact(each.failed)}</td><td class="num">{each.attempts > 2 * each.count && <Mark />}{each.count > 0 ? (each.attempts / each.count).toFixed(2) : "–"}</td><td><Meter value={each.failed} most={each.count} label={`${each.step}: failed`} /></td></tr>)}
        </tbody>
      </table>}
    </section>
  );
}
