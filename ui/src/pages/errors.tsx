// Errors: the same failure of many jobs is one line.
import { useMemo } from "preact/hooks";

import { type ErrorGroup, may, type Page, part, post, type Problem } from "../api";
import { count, plural, shortId, storeTime } from "../format";
import { useRead } from "../live";
import { Ago, Choice, Empty, Loading, Menu, PageHead, toast, Trouble, useTitle } from "../parts/basics";
import { Link, query, setQuery } from "../router";

type Span = "1h" | "1d" | "7d";
const SECONDS: Record<Span, number> = { "1h": 3600, "1d": 86_400, "7d": 604_800 };
type Which = "open" | "resolved" | "ignored";

export function ErrorsPage() {
  useTitle("Errors");
  const span = (query.value.get("since") ?? "1d") as Span;
  const which = (query.value.get("state") ?? "open") as Which;
  const since = useMemo(() => Math.floor(storeTime() - (SECONDS[span] ?? 86_400)), [span]);
  const read = useRead<Page<ErrorGroup>>(`errors?since=${since}&state=${which}`, { topics: ["jobs"], gap: 5000 });
  const all = [...(read.data?.items ?? [])].sort((a, b) => b.count - a.count);
  const total = all.reduce((sum, each) => sum + each.count, 0);
  const most = Math.max(1, ...all.map((each) => each.count));
  const mark = (group: ErrorGroup, state: Which) =>
    void post(`errors/${part(group.fingerprint)}/mark`, { state }).then(() => { toast(state === "open" ? "Open again" : state === "resolved" ? "Resolved, until it happens again" : "Ignored"); read.again(); }, (problem: Problem) => toast(problem.message, true));
  return (
    <>
      <PageHead title="Errors" says={!read.data ? "" : all.length === 0 ? "No such error in this time." : `${plural(total, "job")} in ${plural(all.length, "group")}.`}>
        <Choice label="Which errors" options={[["open", "Open"], ["resolved", "Resolved"], ["ignored", "Ignored"]]} value={which} choose={(value) => setQuery({ state: value === "open" ? null : value })} />
        <Choice label="Since" options={[["1h", "1 hour"], ["1d", "1 day"], ["7d", "7 days"]]} value={span} choose={(value) => setQuery({ since: value })} />
      </PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading />}
      {read.data && all.length === 0 && <Empty title="No errors">Jobs that failed or need attention are grouped by type, place and message, so that a thousand of the same cause are one line.</Empty>}
      <ol class="errors">
        {all.map((each) => (
          <li key={each.fingerprint} class="card error-group">
            <div class="error-count"><span class="num">{count(each.count)}</span><span class="meter" aria-hidden="true"><span style={{ width: `${(each.count / most) * 100}%` }} /></span></div>
            <div class="error-text">
              <p><strong>{each.type.split(".").at(-1)}</strong> <bdi>{each.message}</bdi></p>
              <p class="muted small">
                <Link to={`/jobs?q=${part(`name:${each.job_name} state:failing`)}`}>{each.job_name}</Link>{each.step && <> · <span class="mono">{each.step}</span></>} · last <Ago at={each.last_at} /> · first <Ago at={each.first_at} />
                {each.regressed && <strong class="tone-retrying"> ↻ came back</strong>}
              </p>
            </div>
            <span class="error-end">
              <Link to={`/jobs/${each.sample_job}`} class="mono" title="The latest of these jobs">{shortId(each.sample_job)}</Link>
              {may("jobs.retry") && <Menu label={`Mark ${each.type}`} items={(["open", "resolved", "ignored"] as Which[]).filter((state) => state !== each.state).map((state) => ({ text: state === "open" ? "Open again" : state === "resolved" ? "Resolved" : "Ignore", run: () => mark(each, state) }))} />}
            </span>
          </li>
        ))}
      </ol>
    </>
  );
}
