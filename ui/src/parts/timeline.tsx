// The timeline of a job: one scale of time, five textures, only the rows in sight.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Entry, JobDetail, JobEvent, Spans } from "../api";
import { count, duration, now, precise } from "../format";
import { query, setQuery } from "../router";
import { look } from "../status";
import { Choice } from "./basics";
import { barsOf, criticalPath, grouped, type Model, modelOf, type Row, type Texture, ticks } from "./timeline_model";
import { VirtualRows } from "./virtual";

export type Mode = "compact" | "waterfall" | "critical" | "log";
const MODES: [Mode, string][] = [["compact", "Compact"], ["waterfall", "Waterfall"], ["critical", "Critical path"], ["log", "Log"]];
const ROW = 28;

interface Props {
  job: JobDetail;
  entries: Entry[];
  spans: Spans | null;
  log: preact.ComponentChildren;
  chosen: string | null;
  choose: (id: string | null) => void;
}

export function Timeline({ job, entries, spans, log, chosen, choose }: Props) {
  const live = job.ended_at === null;
  const time = live ? now.value : 0;
  const model = useMemo(() => modelOf(job, entries, spans, time), [job, entries, spans, time]);
  const mode = (query.value.get("view") ?? (job.entries > 200 ? "compact" : "waterfall")) as Mode;
  const rows = useMemo(() => mode === "compact" ? grouped(model.rows) : mode === "critical" ? criticalPath(model.rows) : model.rows, [model, mode]);
  const [from, to] = useZoom(model);
  const [filter, setFilter] = useState("");
  const shown = useMemo(() => filter ? rows.filter((row) => row.label.toLowerCase().includes(filter.toLowerCase()) || look(row.state).word.includes(filter.toLowerCase())) : rows, [rows, filter]);
  const drawn = entries.length > 0;
  useEffect(() => {
    if (drawn) requestAnimationFrame(() => performance.mark("timeline")); // how long it took to be seen
  }, [drawn]);
  return (
    <section class="timeline" aria-label="Timeline">
      <div class="timeline-head">
        <h2>Timeline</h2>
        <Legend model={model} />
        <span class="spring" />
        {rows.length > 12 && <input type="search" class="small" placeholder="Filter steps" aria-label="Filter steps" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />}
        <Choice label="How the timeline is drawn" options={MODES} value={mode} choose={(id) => setQuery({ view: id })} />
      </div>
      {mode === "log" ? log : (
        <>
          <Overview model={model} from={from} to={to} />
          <Scale model={model} from={from} to={to} live={live} />
          <VirtualRows label={`${count(shown.length)} rows of the timeline`} count={shown.length} height={ROW} within={Math.min(shown.length * ROW + 2, 448)} focus={chosen ? shown.findIndex((row) => row.id === chosen) : null}
            row={(index) => {
              const row = shown[index];
              return row && <TimelineRow key={row.id} row={row} from={from} to={to} chosen={row.id === chosen} choose={choose} />;
            }} />
          {shown.length === 0 && <p class="muted pad">{filter ? "No step is called so." : "It has done nothing yet."}</p>}
        </>
      )}
    </section>
  );
}

function Legend({ model }: { model: Model }) {
  const used = useMemo(() => new Set(model.rows.flatMap((row) => row.segments.map((segment) => segment.texture))), [model]);
  const known: [Texture, string][] = [["queue", "queue"], ["work", "work"], ["backoff", "back-off"], ["sleep", "sleep"], ["people", "waits for people"], ["child", "waits for a child"]];
  const all = known.filter(([texture]) => used.has(texture));
  return (
    <span class="legend" aria-label="What the textures mean">
      {all.map(([texture, text]) => <span key={texture}><i class={`bar bar-${texture} tone-waiting`} />{text}</span>)}
    </span>
  );
}

/** What part of the job is in sight: "zoom=12.5-40" in the address, in seconds after its start. */
function useZoom(model: Model): [number, number] {
  const text = query.value.get("zoom");
  const [from, to] = text?.split("-").map(Number) ?? [];
  if (from === undefined || to === undefined || !(to > from)) return [model.from, model.to];
  return [model.from + from, model.from + to];
}

function zoomTo(model: Model, from: number, to: number): void {
  const span = model.to - model.from;
  const width = Math.max(to - from, span / 1e6, 0.002);
  const begin = Math.max(0, Math.min(from - model.from, span - width));
  if (width >= span * 0.999) setQuery({ zoom: null });
  else setQuery({ zoom: `${Number(begin.toFixed(4))}-${Number((begin + width).toFixed(4))}` });
}

/** The whole job in a strip: drag over a part of it to look closer. */
function Overview({ model, from, to }: { model: Model; from: number; to: number }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  const span = model.to - model.from;
  useLayoutEffect(() => {
    const draw = () => drawOverview(canvas.current, model);
    draw();
    addEventListener("resize", draw);
    return () => removeEventListener("resize", draw);
  }, [model]);
  const share = (event: PointerEvent) => {
    const edge = box.current?.getBoundingClientRect();
    return edge ? Math.max(0, Math.min(1, (event.clientX - edge.left) / edge.width)) : 0;
  };
  const [left, right] = drag ? [Math.min(...drag), Math.max(...drag)] : [(from - model.from) / span, (to - model.from) / span];
  const width = to - from;
  return (
    <div class="overview-row">
      <div class="zoom">
        <button class="icon-button" aria-label="Zoom in" title="Zoom in" onClick={() => zoomTo(model, from + width / 4, to - width / 4)}>+</button>
        <button class="icon-button" aria-label="Zoom out" title="Zoom out" onClick={() => zoomTo(model, from - width / 2, to + width / 2)}>−</button>
        <button class="icon-button" aria-label="Show all of it" title="Show all of it" onClick={() => setQuery({ zoom: null })}>⤢</button>
      </div>
      <div
        class="overview"
        ref={box}
        tabIndex={0}
        role="group"
        aria-label="The whole time of the job: plus and minus zoom, arrows move, zero shows all"
        onPointerDown={(event) => { box.current?.setPointerCapture(event.pointerId); setDrag([share(event), share(event)]); }}
        onPointerMove={(event) => drag && setDrag([drag[0], share(event)])}
        onPointerUp={() => {
          if (drag && Math.abs(drag[1] - drag[0]) > 0.004) zoomTo(model, model.from + left * span, model.from + right * span);
          setDrag(null);
        }}
        onDblClick={() => setQuery({ zoom: null })}
        onKeyDown={(event) => {
          const moves: Record<string, [number, number]> = {
            "+": [from + width / 4, to - width / 4],
            "=": [from + width / 4, to - width / 4],
            "-": [from - width / 2, to + width / 2],
            ArrowLeft: [from - width / 4, to - width / 4],
            ArrowRight: [from + width / 4, to + width / 4],
            "0": [model.from, model.to],
          };
          const move = moves[event.key];
          if (!move) return;
          event.preventDefault();
          zoomTo(model, ...move);
        }}
      >
        <canvas ref={canvas} aria-hidden="true" />
        {(drag !== null || width < span * 0.999) && <span class="brush" style={{ left: `${left * 100}%`, width: `${Math.max(0, right - left) * 100}%` }} />}
      </div>
    </div>
  );
}

function drawOverview(canvas: HTMLCanvasElement | null, model: Model): void {
  const context = canvas?.getContext("2d");
  if (!canvas || !context) return;
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const colours = new Map<string, string>();
  const colour = (name: string) => {
    let known = colours.get(name);
    if (known === undefined) colours.set(name, (known = style.getPropertyValue(`--${name}`).trim() || "#888"));
    return known;
  };
  // A colour given by `light-dark()` must be resolved by an element, not by the canvas.
  const probe = document.createElement("span");
  canvas.parentElement?.append(probe);
  const resolved = new Map<string, string>();
  const paint = (name: string) => {
    let known = resolved.get(name);
    if (known === undefined) {
      probe.style.color = colour(name);
      resolved.set(name, (known = getComputedStyle(probe).color));
    }
    return known;
  };
  const span = model.to - model.from;
  const line = Math.max(1, Math.min(4, (height - 4) / Math.max(1, model.rows.length)));
  for (const [index, row] of model.rows.entries()) {
    const y = 2 + (index / Math.max(1, model.rows.length)) * (height - 4);
    for (const segment of row.segments) {
      context.fillStyle = paint(segment.texture === "work" ? look(segment.state).tone : segment.texture === "backoff" ? "retrying" : segment.texture === "people" ? "attention" : "waiting");
      context.globalAlpha = segment.texture === "work" ? 1 : 0.45;
      context.fillRect(((segment.from - model.from) / span) * width, y, Math.max(1, ((segment.to - segment.from) / span) * width), line);
    }
  }
  probe.remove();
}

function Scale({ model, from, to, live }: { model: Model; from: number; to: number; live: boolean }) {
  const narrow = innerWidth < 700;
  const marks = ticks(from - model.from, to - model.from, narrow ? 4 : 9);
  const share = (at: number) => ((at - (from - model.from)) / (to - from)) * 100;
  const line = live ? share(now.value - model.from) : -1;
  return (
    <div class="scale" aria-hidden="true">
      <span class="scale-space" />
      <div class="scale-marks">
        {marks.map((mark) => <span key={mark} style={{ left: `${share(mark)}%` }}>{mark === 0 ? "0s" : duration(mark)}</span>)}
        {line >= 0 && line <= 100 && <i class="now-line" style={{ left: `${line}%` }} />}
      </div>
    </div>
  );
}

function TimelineRow({ row, from, to, chosen, choose }: { row: Row; from: number; to: number; chosen: boolean; choose: (id: string | null) => void }) {
  const bars = barsOf(row.segments, from, to, 1000);
  const { glyph, tone, word } = look(row.state);
  const took = duration(row.kind === "queue" ? row.segments.reduce((sum, each) => sum + each.to - each.from, 0) : row.to - row.from);
  return (
    <button class={chosen ? "timeline-row chosen" : "timeline-row"} aria-pressed={chosen} onClick={() => choose(chosen || row.kind === "queue" ? null : row.id)}>
      <span class="timeline-label" title={row.label}>
        <span class={`glyph tone-${row.kind === "queue" ? "waiting" : tone}`} aria-hidden="true">{row.kind === "queue" ? "◌" : glyph}</span>
        {row.kind !== "queue" && <span class="sr">{word}</span>}
        <bdi class="clip">{row.label}</bdi>
        {row.count > 1 && <span class="muted">×{count(row.count)}</span>}
        {row.attempt > 1 && <span class="tone-retrying small">↻{row.attempt}</span>}
      </span>
      <span class="timeline-bars">
        {bars.map((bar, index) => (
          <i key={index} class={`bar bar-${bar.texture} tone-${bar.texture === "backoff" ? "retrying" : bar.texture === "people" ? "attention" : bar.texture === "work" ? look(bar.state).tone : "waiting"}`} style={{ left: `${bar.left * 100}%`, width: `${bar.width * 100}%` }} title={bar.count > 1 ? `${bar.count} × ${bar.texture}` : bar.text} />
        ))}
      </span>
      <span class="timeline-took">{took}</span>
    </button>
  );
}

/** Every event of the job, in its order. */
export function Log({ events, start }: { events: JobEvent[]; start: number }) {
  const [filter, setFilter] = useState("");
  const shown = useMemo(() => {
    const low = filter.toLowerCase();
    return low ? events.filter((event) => `${event.type} ${event.actor} ${JSON.stringify(event.data)}`.toLowerCase().includes(low)) : events;
  }, [events, filter]);
  useEffect(() => setFilter(""), [start]);
  return (
    <div class="log">
      {events.length > 12 && <input type="search" class="small" placeholder="Filter events" aria-label="Filter events" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />}
      <VirtualRows label="Events" count={shown.length} height={ROW} within={Math.max(ROW + 2, Math.min(shown.length * ROW + 2, 476))}
        row={(index) => {
          const event = shown[index];
          return event && (
            <div key={event.no} class="log-row">
              <span class="mono muted">{precise(event.at)}</span>
              <span class="num muted">+{duration(event.at - start)}</span>
              <span class="log-type">{event.type}</span>
              <bdi class="clip muted" title={JSON.stringify(event.data, null, 1)}>{told(event)}</bdi>
              <span class="clip muted log-actor">{event.actor}</span>
            </div>
          );
        }} />
      {shown.length === 0 && <p class="muted pad">No event.</p>}
    </div>
  );
}

function told(event: JobEvent): string {
  return Object.entries(event.data).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ");
}
