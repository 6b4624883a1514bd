// Audit: what every person and program did, in a chain that shows what was changed.
import { useEffect, useState } from "preact/hooks";

import { type AuditEntry, get, type Page, type Problem } from "../api";
import { plural } from "../format";
import { At, Empty, Loading, PageHead, Trouble, useTitle } from "../parts/basics";
import { Link } from "../router";

export function AuditPage() {
  useTitle("Audit");
  const [items, setItems] = useState<AuditEntry[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [verdict, setVerdict] = useState<Report | null>(null);
  const [filter, setFilter] = useState("");
  const load = (cursor: string | null) => {
    get<Page<AuditEntry>>("audit", { cursor, limit: 100 }).then((page) => {
      setItems((old) => (cursor ? [...(old ?? []), ...page.items] : page.items));
      setNext(page.next);
      setProblem(null);
    }, setProblem);
  };
  useEffect(() => load(null), []);
  const low = filter.toLowerCase();
  const shown = (items ?? []).filter((each) => !low || JSON.stringify(each).toLowerCase().includes(low));
  return (
    <>
      <PageHead title="Audit" says={verdict ? <Verdict verdict={verdict} /> : "Every action of a person or a program, in a chain of hashes."}>
        <input type="search" placeholder="Filter" aria-label="Filter the audit log" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        <button class="button" onClick={() => get<Report>("audit/verify").then(setVerdict, setProblem)}>Verify the chain</button>
      </PageHead>
      {problem && <Trouble problem={problem} again={() => load(null)} />}
      {!items && !problem && <Loading />}
      {items?.length === 0 && <Empty title="Nothing yet">What people and programs do through the API, the dashboard or the command line is recorded here, and cannot be changed without breaking the chain.</Empty>}
      {shown.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Audit log">
          <table class="narrow-cards">
            <thead><tr><th class="num">No</th><th>Time</th><th>Who</th><th>Did</th><th>To</th><th>With</th><th>From</th><th>Hash</th></tr></thead>
            <tbody>
              {shown.map((each) => (
                <tr key={`${each.tenant} ${each.no}`}>
                  <td data-label="No" class="num muted">{each.no}</td>
                  <td data-label="Time" class="num"><At at={each.at} seconds /></td>
                  <td data-label="Who"><bdi>{each.actor}</bdi>{each.kind === "service" && <span class="muted"> (program)</span>}</td>
                  <td data-label="Did">{each.action}</td>
                  <td data-label="To" class="mono clip">{target(each)}</td>
                  <td data-label="With" class="clip muted" title={JSON.stringify(each.data, null, 1)}>{Object.entries(each.data).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ")}</td>
                  <td data-label="From" class="mono muted">{each.address}</td>
                  <td data-label="Hash" class="mono muted">{each.hash.slice(0, 12)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {next && <p><button class="button" onClick={() => load(next)}>Older</button> <span class="muted">{plural(items?.length ?? 0, "entry", "entries")}</span></p>}
    </>
  );
}

function target(entry: AuditEntry) {
  const text = entry.target;
  return /^[0-9a-f]{32}$/.test(text) ? <Link to={`/jobs/${text}`}>{text}</Link> : <bdi>{text}</bdi>;
}

interface Report {
  ok: boolean;
  entries: number;
  broken: unknown[];
}

function Verdict({ verdict }: { verdict: Report }) {
  const said = verdict.ok ? <><span class="tone-done">✓</span> The chain is intact: {plural(verdict.entries, "entry", "entries")}.</> : <><span class="tone-failed">✗ The chain is broken:</span> {JSON.stringify(verdict.broken)}</>;
  return <span role="status">{said}</span>;
}
