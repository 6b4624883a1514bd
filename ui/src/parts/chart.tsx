// A small line chart, with a table of the same numbers for those who cannot see it.
import { useRef, useState } from "preact/hooks";

import { clock, compact } from "../format";
import { useNarrow } from "./narrow";

export interface Series {
  name: string;
  tone: string;
  points: [number, number][];
}

interface Props {
  title: string;
  unit?: string;
  series: Series[];
  bars?: boolean;
}

const HEIGHT = 160;
const LEFT = 40;
const BOTTOM = 22;

function ceiling(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= value) ?? value;
}

export function Chart({ title, unit = "", series, bars }: Props) {
  const WIDTH = useNarrow() ? 340 : 640; // of the drawing, which the browser stretches
  const [table, setTable] = useState(false);
  const [at, setAt] = useState<number | null>(null);
  const box = useRef<SVGSVGElement>(null);
  const times = series[0]?.points.map(([time]) => time) ?? [];
  const most = ceiling(Math.max(0, ...series.flatMap((each) => each.points.map(([, value]) => value))));
  const first = times[0] ?? 0;
  const span = (times.at(-1) ?? 1) - first || 1;
  const x = (time: number) => LEFT + ((time - first) / span) * (WIDTH - LEFT - 8);
  const y = (value: number) => 8 + (1 - value / most) * (HEIGHT - BOTTOM - 8);
  const step = times.length > 1 ? x(times[1] ?? 0) - x(first) : 4;
  const marks = [0.0, 0.5, 1.0].map((share) => share * most);
  const ticks = (WIDTH < 500 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) => first + share * span);
  return (
    <figure class="chart card">
      <figcaption>
        <h3>{title}</h3>
        <span class="legend">{series.map((each) => <span key={each.name}><i class={`swatch tone-${each.tone}`} />{each.name}{at !== null && <b class="num"> {compact(each.points[at]?.[1] ?? 0)}</b>}</span>)}</span>
        <span class="spring" />
        {at !== null && times[at] !== undefined && <span class="muted num">{clock(times[at])}</span>}
        <button class="text-button" aria-pressed={table} onClick={() => setTable(!table)}>{table ? "Chart" : "Table"}</button>
      </figcaption>
      {table ? (
        <div class="table-box chart-table" tabIndex={0} role="region" aria-label={title}>
          <table>
            <thead><tr><th>Time</th>{series.map((each) => <th key={each.name} class="num">{each.name}</th>)}</tr></thead>
            <tbody>{times.map((time, index) => <tr key={time}><td>{clock(time)}</td>{series.map((each) => <td key={each.name} class="num">{compact(each.points[index]?.[1] ?? 0)}{unit}</td>)}</tr>)}</tbody>
          </table>
        </div>
      ) : (
        <svg ref={box} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${title}; the table has the same numbers`}
          onPointerMove={(event) => {
            const edge = box.current?.getBoundingClientRect();
            if (!edge || times.length === 0) return;
            const share = (((event.clientX - edge.left) / edge.width) * WIDTH - LEFT) / (WIDTH - LEFT - 8);
            setAt(Math.max(0, Math.min(times.length - 1, Math.round(share * (times.length - 1)))));
          }}
          onPointerLeave={() => setAt(null)}>
          {marks.map((mark) => <g key={mark}><line class="grid" x1={LEFT} x2={WIDTH - 8} y1={y(mark)} y2={y(mark)} /><text class="axis" x={LEFT - 6} y={y(mark) + 4} text-anchor="end">{compact(mark)}{unit}</text></g>)}
          {times.length > 0 && ticks.map((tick, index) => <text key={index} class="axis" x={x(tick)} y={HEIGHT - 4} text-anchor={index === 0 ? "start" : index === ticks.length - 1 ? "end" : "middle"}>{clock(tick)}</text>)}
          {at !== null && times[at] !== undefined && <line class="cursor" x1={x(times[at])} x2={x(times[at])} y1={8} y2={HEIGHT - BOTTOM} />}
          {series.map((each) => bars ? (
            <g key={each.name} class={`fill tone-${each.tone}`}>{each.points.map(([time, value]) => value > 0 && <rect key={time} x={x(time) - step / 2 + 0.5} width={Math.max(1, step - 1)} y={y(value)} height={HEIGHT - BOTTOM - y(value)} />)}</g>
          ) : (
            <path key={each.name} class={`line tone-${each.tone}`} d={each.points.map(([time, value], index) => `${index ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("")} />
          ))}
        </svg>
      )}
    </figure>
  );
}
