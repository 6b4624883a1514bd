// Errors: the same failure of many jobs is one line.
import { type ErrorGroup, type Page, part } from "../api";
import { count, plural, shortId } from "../format";
import { useRead } from "../live";
import { Ago, Choice, Empty, Loading, PageHead, Trouble, useTitle } from "../parts/basics";
import { Link, query, setQuery } from "../router";

type Span = "1h" | "1d" | "7d";
const HOURS: Record<Span, number> = { "1h": 1, "1d": 24, "7d": 168 };

export function ErrorsPage() {
  useTitle("Errors");
  const span = (query.value.get("since") ?? "1d") as Span;
  const read = useRead<Page<ErrorGroup>>(`errors?hours=${HOURS[span] ?? 24}`, { topics: ["jobs"], gap: 5000 });
  const all = [...(read.data?.items ?? [])].sort((a, b) => b.count - a.count);
  const total = all.reduce((sum, each) => sum + each.count, 0);
  const most = Math.max(1, ...all.map((each) => each.count));
  return (
    <>
      <PageHead title="Errors" says={!read.data ? "" : all.length === 0 ? "No error in this time." : `${plural(total, "error")} in ${plural(all.length, "group")}.`}>
        <Choice label="Since" options={[["1h", "1 hour"], ["1d", "1 day"], ["7d", "7 days"]]} value={span} choose={(value) => setQuery({ since: value })} />
      </PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading />}
      {read.data && all.length === 0 && <Empty title="No errors">Failures of steps and jobs are grouped by type, place and message, so that a thousand of the same kind are one line.</Empty>}
      <ol class="errors">
        {all.map((each) => (
          <li key={each.fingerprint} class="card error-group">
            <div class="error-count"><span class="num">{count(each.count)}</span><span class="meter" aria-hidden="true"><span style={{ width: `${(each.count / most) * 100}%` }} /></span></div>
            <div class="error-text">
              <p><strong>{each.type.split(".").at(-1)}</strong> <bdi>{each.message}</bdi></p>
              <p class="muted small">
                <Link to={`/jobs?q=${part(`name:${each.job_name}`)}`}>{each.job_name}</Link>{each.step && <> · <span class="mono">{each.step}</span></>} · last <Ago at={each.last_at} /> · first <Ago at={each.first_at} />
              </p>
            </div>
            <Link to={`/jobs/${each.sample_job}${each.step ? `?step=${part(each.step)}` : ""}`} class="mono">{shortId(each.sample_job)}</Link>
          </li>
        ))}
      </ol>
    </>
  );
}
