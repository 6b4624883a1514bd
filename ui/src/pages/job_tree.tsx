// The jobs below a job, as a tree on one scale of time.
import { useMemo, useState } from "preact/hooks";

import type { JobDetail, JobRow, Page } from "../api";
import { part } from "../api";
import { count, duration, now, shortId, took } from "../format";
import { useRead } from "../live";
import { Loading, Trouble } from "../parts/basics";
import { VirtualRows } from "../parts/virtual";
import { Link } from "../router";
import { look, State } from "../status";

interface Branch {
  row: JobRow;
  depth: number;
  below: number;
}

/** The rows in the order of a tree, each behind its parent; without those below a closed one. */
export function branches(root: JobRow, rows: JobRow[], closed: ReadonlySet<string>): Branch[] {
  const children = new Map<string, JobRow[]>();
  for (const row of rows) {
    const known = children.get(row.parent ?? "");
    if (known) known.push(row);
    else children.set(row.parent ?? "", [row]);
  }
  const found: Branch[] = [];
  const waiting: [JobRow, number][] = [[root, 0]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [row, depth] = next;
    const own = children.get(row.id) ?? [];
    found.push({ row, depth, below: own.length });
    if (!closed.has(row.id)) for (const child of own.toReversed()) waiting.push([child, depth + 1]);
  }
  return found;
}

export function JobTree({ job }: { job: JobDetail }) {
  const read = useRead<Page<JobRow> & { cut: boolean }>(`jobs/${part(job.id)}/tree`, { topics: ["jobs"], gap: 2000 });
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const shown = useMemo(() => branches(job, read.data?.items ?? [], closed), [job, read.data, closed]);
  if (read.problem) return <Trouble problem={read.problem} again={read.again} />;
  if (!read.data) return <Loading rows={4} />;
  const end = Math.max(job.ended_at ?? now.value, ...read.data.items.map((row) => row.ended_at ?? now.value));
  const span = Math.max(0.001, end - job.created_at);
  const fold = (id: string) => {
    const next = new Set(closed);
    if (!next.delete(id)) next.add(id);
    setClosed(next);
  };
  return (
    <div class="job-tree">
      <VirtualRows label="Jobs below this one" count={shown.length} height={32} within={Math.max(34, Math.min(576, shown.length * 32 + 2))}
        row={(index) => {
          const branch = shown[index];
          return branch && <BranchRow key={branch.row.id} branch={branch} from={job.created_at} span={span} closed={closed.has(branch.row.id)} fold={() => fold(branch.row.id)} />;
        }} />
      {read.data.cut && <p class="muted small pad">Only {count(read.data.items.length)} of them are drawn. <Link to={`/jobs?q=${part(`parent:${job.id}`)}`}>List all children</Link></p>}
    </div>
  );
}

function BranchRow({ branch, from, span, closed, fold }: { branch: Branch; from: number; span: number; closed: boolean; fold: () => void }) {
  const { row, depth, below } = branch;
  const end = row.ended_at ?? now.value;
  const left = Math.max(0, (row.created_at - from) / span) * 100;
  return (
    <div class="branch">
      <span class="branch-name" style={{ paddingLeft: `${Math.min(depth, 16) * 18}px` }}>
        {below > 0 ? <button class="tree-fold" aria-expanded={!closed} aria-label={`${closed ? "Open" : "Close"} ${row.name} ${shortId(row.id)}`} onClick={fold}>{closed ? "▸" : "▾"}</button> : <span class="tree-fold" />}
        <State state={row.shown_state} word={false} />
        <Link to={`/jobs/${row.id}`} class="row-name"><bdi class="clip">{row.name}</bdi>{row.key && <bdi class="clip muted key">{row.key}</bdi>}</Link>
        {closed && <span class="muted small">+{count(below)}</span>}
      </span>
      <span class="branch-bar" aria-hidden="true"><i class={`tone-${look(row.shown_state).tone}`} style={{ left: `${left}%`, width: `${Math.max(0.4, Math.min(100 - left, ((end - row.created_at) / span) * 100))}%` }} /></span>
      <span class="num">{duration(took(row))}</span>
      <span class="mono muted">{shortId(row.id)}</span>
    </div>
  );
}
