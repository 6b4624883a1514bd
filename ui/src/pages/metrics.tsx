// Metrics: how much is done, and how well.
import { type Metrics } from "../api";
import { bytes, compact, count, duration } from "../format";
import { useRead } from "../live";
import { Choice, Loading, PageHead, Trouble, useTitle } from "../parts/basics";
import { Chart, type Series } from "../parts/chart";
import { url } from "../base";
import { query, setQuery } from "../router";

type Span = "60" | "360" | "1440";
const TONES: Record<string, string> = { completed: "done", failed: "failed", submitted: "running", retried: "retrying", cancelled: "off", compensated: "undo", attention: "attention" };

export function MetricsPage() {
  useTitle("Metrics");
  const span = (query.value.get("minutes") ?? "60") as Span;
  const read = useRead<Metrics>(`metrics?minutes=${span}`, { every: 15 });
  const data = read.data;
  const series: Series[] = Object.entries(data?.series ?? {}).map(([name, points]) => ({ name, tone: TONES[name] ?? "off", points }));
  const of = (...names: string[]) => names.map((name) => series.find((each) => each.name === name)).filter((each) => each !== undefined);
  const named = ["submitted", "completed", "failed", "retried"];
  const sum = (name: string) => (data?.series[name] ?? []).reduce((total, [, value]) => total + value, 0);
  const rest = series.filter((each) => !named.includes(each.name));
  return (
    <>
      <PageHead title="Metrics" says={data ? `${count(sum("completed"))} completed, ${count(sum("failed"))} failed in ${duration(Number(span) * 60)}.` : ""}>
        <Choice label="How far back" options={[["60", "1 hour"], ["360", "6 hours"], ["1440", "1 day"]]} value={span} choose={(value) => setQuery({ minutes: value })} />
      </PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!data && !read.problem && <Loading />}
      {data && (
        <>
          <dl class="gauges">{Object.entries(data.gauges).map(([name, value]) => <div key={name} class="card"><dt title={name}>{wording(name)}</dt><dd class="num">{shown(name, value)}</dd></div>)}</dl>
          <div class="charts">
            {of("submitted", "completed").length > 0 && <Chart title="Throughput" series={of("submitted", "completed")} />}
            {of("failed", "retried").length > 0 && <Chart title="Trouble" series={of("failed", "retried")} bars={of("failed", "retried").length === 1} />}
            {rest.map((each) => <Chart key={each.name} title={wording(each.name)} series={[each]} />)}
          </div>
          <p class="muted small">The same and more for Prometheus: <a href={url("metrics")}>/metrics</a></p>
        </>
      )}
    </>
  );
}

const wording = (name: string): string => {
  const text = name.replace(/[._]/g, " ").replace(/ (seconds|bytes|usd)$/, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

function shown(name: string, value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "object") return Object.entries(value as Record<string, unknown>).map(([key, each]) => `${key} ${shown(`${name}.${key}`, each)}`).join("  ");
  if (typeof value !== "number") return String(value);
  if (/seconds|duration|age/.test(name)) return duration(value);
  if (/bytes/.test(name)) return bytes(value);
  if (/rate|share|ratio/.test(name)) return `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;
  return compact(value);
}
