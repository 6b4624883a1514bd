// Processes: the supervision tree of every worker. Who keeps crashing?
import { useMemo, useState } from "preact/hooks";

import { may, type Page, part, post, type TreeNode, type Worker } from "../api";
import { count, duration, plural, shortId } from "../format";
import { useKeys } from "../keys";
import { useRead } from "../live";
import { Ask, Empty, Loading, PageHead, toast, Trouble, useTitle } from "../parts/basics";
import { VirtualRows } from "../parts/virtual";
import { Link, query, setQuery } from "../router";

interface Line {
  node: TreeNode;
  depth: number;
  key: string;
  size: number;
}

/** What a `perdure up` of the server's machine runs. */
interface UpTree {
  folder: string;
  os_pid: number;
  roots: TreeNode[];
}

const UP = "up:";

export function ProcessesPage() {
  useTitle("Processes");
  const workers = useRead<Page<Worker>>("workers", { topics: ["workers"], every: 15 });
  const all = workers.data?.items ?? [];
  const ups = useRead<Page<UpTree>>("up", { every: 5 });
  const local = ups.data?.items ?? [];
  const chosen = query.value.get("worker") ?? all[0]?.id ?? (local[0] ? `${UP}${local[0].os_pid}` : null);
  const asked = useRead<{ roots: TreeNode[] }>(chosen && !chosen.startsWith(UP) ? `workers/${part(chosen)}/tree` : null, { every: 3 });
  const up = local.find((each) => `${UP}${each.os_pid}` === chosen);
  const tree = up ? { ...asked, data: up } : asked;
  const [filter, setFilter] = useState("");
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const lines = useMemo(() => flatten(tree.data?.roots ?? [], closed, filter.toLowerCase()), [tree.data, closed, filter]);
  const stats = useMemo(() => statistics(tree.data?.roots ?? []), [tree.data]);
  const pid = query.value.get("pid");
  const current = lines.findIndex((line) => keyOf(line) === pid);
  const choose = (index: number) => {
    const line = lines[index];
    if (line) setQuery({ pid: keyOf(line) });
  };
  useKeys("Processes", {
    j: ["Next process", () => choose(Math.min(current + 1, lines.length - 1))],
    k: ["Previous process", () => choose(Math.max(current - 1, 0))],
  });
  const says = !tree.data ? "" : stats.worst ? `${plural(stats.total, "process", "processes")}; ${stats.worst.label} was restarted ${plural(stats.worst.restarts, "time")}.` : `${plural(stats.total, "process", "processes")}, none was restarted.`;
  const line = lines[current];
  return (
    <>
      <PageHead title="Processes" says={says}>
        {all.length + local.length > 0 && (
          <select aria-label="Worker" value={chosen ?? ""} onChange={(event) => setQuery({ worker: event.currentTarget.value, pid: null })}>
            {all.map((each) => <option key={each.id} value={each.id}>{each.host} {each.pid}</option>)}
            {local.map((each) => <option key={each.os_pid} value={`${UP}${each.os_pid}`}>up {each.folder.split("/").at(-1)}</option>)}
            {chosen && !up && !all.some((each) => each.id === chosen) && <option value={chosen}>{chosen}</option>}
          </select>
        )}
        <input type="search" placeholder="Search processes" aria-label="Search processes" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
      </PageHead>
      {workers.problem && <Trouble problem={workers.problem} again={workers.again} />}
      {tree.problem && <Trouble problem={tree.problem} again={tree.again} />}
      {workers.data && ups.data && all.length + local.length === 0 && <Empty title="No worker is running" code="perdure worker module:app">Each worker is a tree of supervised processes. It is shown here live, also that of <code>perdure up</code>.</Empty>}
      {chosen && !tree.data && !tree.problem && <Loading />}
      {tree.data && (
        <div class="split processes">
          <div class="split-list">
            <div class="tree-heads" aria-hidden="true"><span>Process</span><span>State</span><span class="num">Mailbox</span><span class="num">Restarts</span><span class="num">Age</span></div>
            <VirtualRows label="Processes" count={lines.length} height={30} within={Math.max(32, Math.min(660, lines.length * 30 + 2))} focus={current}
              row={(index) => {
                const each = lines[index];
                return each && <TreeLine key={each.key} line={each} chosen={index === current} closed={closed.has(each.key)} choose={() => choose(index)} fold={() => {
                  const next = new Set(closed);
                  if (!next.delete(each.key)) next.add(each.key);
                  setClosed(next);
                }} />;
              }} />
            {lines.length === 0 && <p class="muted pad">No process is called so.</p>}
          </div>
          <div class="split-detail">{line ? <Inspector key={keyOf(line)} worker={chosen ?? ""} node={line.node} /> : <p class="muted pad">Choose a process to see its mailbox, links, monitors and stack.</p>}</div>
        </div>
      )}
    </>
  );
}

/** A function of Perdure by its last two names. */
const short = (label: string): string => (label.startsWith("perdure.") ? label.split(".").slice(-2).join(".") : label);

const keyOf = (line: Line): string => line.node.pid ?? line.key;

function flatten(roots: TreeNode[], closed: ReadonlySet<string>, filter: string): Line[] {
  const lines: Line[] = [];
  const visit = (node: TreeNode, depth: number, key: string): boolean => {
    const at = lines.length;
    lines.push({ node, depth, key, size: node.children.length });
    let found = !filter || `${node.label} ${node.pid ?? ""} ${node.state}`.toLowerCase().includes(filter);
    if (filter || !closed.has(key)) {
      for (const [index, child] of node.children.entries()) found = visit(child, depth + 1, `${key}/${child.pid ?? `${String(child.id)}:${index}`}`) || found;
    }
    if (!found) lines.length = at;
    return found;
  };
  for (const [index, root] of roots.entries()) visit(root, 0, root.pid ?? String(index));
  return lines;
}

function statistics(roots: TreeNode[]): { total: number; worst: TreeNode | null } {
  let total = 0;
  let worst: TreeNode | null = null;
  const waiting = [...roots];
  for (let node = waiting.pop(); node; node = waiting.pop()) {
    total++;
    if (node.restarts > (worst?.restarts ?? 0)) worst = node;
    waiting.push(...node.children);
  }
  return { total, worst };
}

const TONES: Record<string, [string, string]> = {
  running: ["●", "running"],
  waiting: ["◌", "waiting"],
  parked: ["◌", "waiting"],
  restarting: ["↻", "retrying"],
  "not running": ["✗", "failed"],
  blocked: ["!", "attention"],
  elsewhere: ["◌", "waiting"],
};

function TreeLine({ line, chosen, closed, choose, fold }: { line: Line; chosen: boolean; closed: boolean; choose: () => void; fold: () => void }) {
  const { node, depth, size } = line;
  const [glyph, tone] = TONES[node.state] ?? ["·", "waiting"];
  return (
    <div class={chosen ? "tree-line chosen" : "tree-line"}>
      <span class="tree-name" style={{ paddingLeft: `${Math.min(depth, 20) * 16}px` }}>
        {size > 0 ? <button class="tree-fold" aria-expanded={!closed} aria-label={`${closed ? "Open" : "Close"} ${node.label}`} onClick={fold}>{closed ? "▸" : "▾"}</button> : <span class="tree-fold" />}
        <button class="tree-label" aria-pressed={chosen} onClick={choose} title={node.label}>
          <span class={node.kind === "supervisor" ? "kind-supervisor" : ""}>{short(node.label)}</span>
          {closed && <span class="muted"> +{count(size)}</span>}
        </button>
      </span>
      <span class={`tone-${tone} clip`}><span aria-hidden="true">{glyph}</span> {node.state}</span>
      <span class={(node.mailbox ?? 0) > 100 ? "num tone-retrying" : "num"}>{node.mailbox ? count(node.mailbox) : ""}</span>
      <span class={node.restarts > 0 ? "num tone-retrying" : "num muted"}>{node.restarts > 0 ? `↻ ${count(node.restarts)}` : ""}</span>
      <span class="num muted">{node.age !== undefined && node.age !== null ? duration(node.age) : ""}</span>
    </div>
  );
}

function Inspector({ worker, node }: { worker: string; node: TreeNode }) {
  const [kill, setKill] = useState(false);
  const pid = node.pid ?? null;
  const read = useRead<TreeNode & Record<string, unknown>>(pid && !worker.startsWith(UP) ? `workers/${part(worker)}/processes/${part(pid)}` : null, { every: 3 });
  const info = { ...node, ...(read.data ?? {}) } as TreeNode & Record<string, unknown>;
  const list = (name: string, values: unknown) => Array.isArray(values) && values.length > 0 && (
    <div><dt>{name}</dt><dd>{values.map((value) => <button key={String(value)} class="link mono" onClick={() => setQuery({ pid: String(value) })}>{String(value)}</button>)}</dd></div>
  );
  return (
    <div class="entry-detail">
      <div class="entry-head">
        <h3 class="clip">{node.label}</h3>
        <span class="spring" />
        {pid && may("processes.kill") && info.allow_kill === true && <button class="button small danger" onClick={() => setKill(true)}>Kill…</button>}
      </div>
      {read.problem && read.problem.status !== 404 && <Trouble problem={read.problem} />}
      {read.problem?.status === 404 && <p class="muted">It has ended since.</p>}
      <dl class="facts small stacked">
        <div><dt>Process</dt><dd class="mono">{pid ?? "not running"}</dd></div>
        <div><dt>State</dt><dd>{info.state}</dd></div>
        <div><dt>Kind</dt><dd>{info.kind ?? node.kind}</dd></div>
        {info.function && <div><dt>Function</dt><dd class="mono">{info.function}</dd></div>}
        <div><dt>Mailbox</dt><dd class="num">{plural(info.mailbox ?? 0, "message")}</dd></div>
        <div><dt>Restarts</dt><dd class="num">{info.restarts ?? node.restarts}</dd></div>
        {info.job && <div><dt>Works on</dt><dd><Link to={`/jobs/${info.job}`} class="mono">{info.step ?? shortId(info.job)}</Link></dd></div>}
        {info.age !== undefined && info.age !== null && <div><dt>Age</dt><dd class="num">{duration(info.age)}</dd></div>}
        {typeof info.trap_links === "boolean" && <div><dt>Traps links</dt><dd>{info.trap_links ? "yes" : "no"}</dd></div>}
        {info.names && info.names.length > 0 && <div><dt>Names</dt><dd>{info.names.join(", ")}</dd></div>}
        {typeof info.parent === "string" && list("Parent", [info.parent])}
        {list("Links", info.links)}
        {list("Monitors", info.monitors)}
        {list("Monitored by", info.monitored_by)}
        {typeof info.supervisor === "string" && list("Supervisor", [info.supervisor])}
        {typeof info.restart === "string" && <div><dt>Is restarted</dt><dd>{info.restart}</dd></div>}
      </dl>
      {Array.isArray(info.messages) && info.messages.length > 0 && <><h4>First messages</h4><pre class="stack" tabIndex={0}>{(info.messages as string[]).join("\n")}</pre></>}
      {info.stack && info.stack.length > 0 && <><h4>Stack, innermost last</h4><pre class="stack" tabIndex={0}>{info.stack.join("\n")}</pre></>}
      {kill && pid && (
        <Ask title={`Kill ${node.label}`} verb="Kill it" danger close={() => setKill(false)}
          run={async (reason) => {
            await post(`workers/${part(worker)}/processes/${part(pid)}/kill`, { reason });
            toast("Killed");
          }}>
          <p>The process ends at once, as if it had crashed. Processes linked to it end, too; its supervisor starts it again as its strategy says.</p>
        </Ask>
      )}
    </div>
  );
}
