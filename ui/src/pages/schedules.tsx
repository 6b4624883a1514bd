// Schedules: what is submitted by the clock, and when next.
import { useState } from "preact/hooks";

import { ask, type JobDetail, may, type Page, part, post, type Problem, type Schedule } from "../api";
import { moment, now, plural, relative } from "../format";
import { useRead } from "../live";
import { Ago, Ask, Empty, Loading, Menu, PageHead, toast, Trouble, useTitle } from "../parts/basics";
import { go, Link } from "../router";

export function SchedulesPage() {
  useTitle("Schedules");
  const read = useRead<Page<Schedule>>("schedules", { topics: ["jobs"], every: 30, gap: 10_000 });
  const [gone, setGone] = useState<Schedule | null>(null);
  const all = read.data?.items ?? [];
  const soon = all.filter((each) => each.next[0]).sort((a, b) => (a.next[0] ?? 0) - (b.next[0] ?? 0))[0];
  const act = (promise: Promise<unknown>, text: string) => void promise.then(() => { toast(text); read.again(); }, (problem: Problem) => toast(problem.message, true));
  return (
    <>
      <PageHead title="Schedules" says={!read.data ? "" : soon ? `Next: ${soon.name} ${relative(soon.next[0] ?? 0, now.value)}.` : all.length > 0 ? `${plural(all.length, "schedule")}.` : ""} />
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading rows={4} />}
      {read.data && all.length === 0 && <Empty title="No schedules" code={`perdure schedules put nightly "0 3 * * *" report`}>A schedule submits a job at the times of a cron expression, also those that were missed, if you want.</Empty>}
      {all.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Schedules">
          <table class="narrow-cards">
            <thead><tr><th>Schedule</th><th>When</th><th>Job</th><th class="num">Next</th><th class="num">Last</th><th>State</th><th><span class="sr">Actions</span></th></tr></thead>
            <tbody>
              {all.map((each) => (
                <tr key={each.name}>
                  <td data-label="Schedule"><bdi>{each.name}</bdi></td>
                  <td data-label="When"><span>{each.explained}</span><br /><span class="mono muted small">{each.cron} · {each.timezone}</span></td>
                  <td data-label="Job"><Link to={`/jobs?q=${part(`name:${each.job}`)}`}>{each.job}</Link></td>
                  <td data-label="Next" class="num" title={each.next.map((at) => moment(at)).join("\n")}>
                    {each.next[0] ? <details class="next"><summary><Ago at={each.next[0]} /></summary><ul>{each.next.map((at) => <li key={at}>{moment(at)}</li>)}</ul></details> : <span class="muted">–</span>}
                  </td>
                  <td data-label="Last" class="num"><Ago at={each.last_at} /></td>
                  <td data-label="State">{each.paused ? <span class="tone-off">– paused</span> : <span class="tone-done">✓ on</span>}</td>
                  <td class="num">
                    {may("schedules.write") && <Menu label={`Actions for ${each.name}`} items={[
                      { text: "Run now", run: () => void post<JobDetail>(`schedules/${part(each.name)}/run`).then((job) => { toast("Submitted"); go(`/jobs/${job.id}`); }, (problem: Problem) => toast(problem.message, true)) },
                      { text: each.paused ? "Resume" : "Pause", run: () => act(post(`schedules/${part(each.name)}/${each.paused ? "resume" : "pause"}`), each.paused ? "Resumed" : "Paused") },
                      { text: "Delete…", run: () => setGone(each) },
                    ]} />}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {gone && (
        <Ask title={`Delete ${gone.name}`} verb="Delete it" danger reason={null} close={() => setGone(null)}
          run={async () => {
            await ask("DELETE", `schedules/${part(gone.name)}`);
            toast("Deleted");
            read.again();
          }}>
          <p>It submits nothing any more. The jobs that it has submitted stay.</p>
        </Ask>
      )}
    </>
  );
}
