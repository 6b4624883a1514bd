// What differs between two texts, line by line (Myers' algorithm, bounded).

export interface DiffLine {
  kind: "same" | "gone" | "new";
  text: string;
}

const MOST_LINES = 4000;
const MOST_EDITS = 1200;

export function diffLines(before: string, after: string): DiffLine[] | null {
  const a = before.split("\n");
  const b = after.split("\n");
  if (a.length > MOST_LINES || b.length > MOST_LINES) return null;
  const trace: Map<number, number>[] = [];
  let ends = new Map<number, number>([[1, 0]]);
  const most = Math.min(a.length + b.length, MOST_EDITS);
  for (let d = 0; d <= most; d++) {
    trace.push(new Map(ends));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (ends.get(k - 1) ?? 0) < (ends.get(k + 1) ?? 0));
      let x = down ? (ends.get(k + 1) ?? 0) : (ends.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x++;
        y++;
      }
      ends.set(k, x);
      if (x >= a.length && y >= b.length) return walkBack(trace, a, b, d);
    }
    ends = new Map(ends);
  }
  return null;
}

function walkBack(trace: Map<number, number>[], a: string[], b: string[], edits: number): DiffLine[] {
  const lines: DiffLine[] = [];
  let [x, y] = [a.length, b.length];
  for (let d = edits; d >= 0; d--) {
    const ends = trace[d] ?? new Map<number, number>();
    const k = x - y;
    const down = k === -d || (k !== d && (ends.get(k - 1) ?? 0) < (ends.get(k + 1) ?? 0));
    const from = down ? k + 1 : k - 1;
    const fromX = ends.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > Math.max(fromX, 0) && y > Math.max(fromY, 0)) {
      x--;
      y--;
      lines.push({ kind: "same", text: a[x] ?? "" });
    }
    if (d === 0) break;
    if (down) lines.push({ kind: "new", text: b[--y] ?? "" });
    else lines.push({ kind: "gone", text: a[--x] ?? "" });
  }
  return lines.reverse();
}

const MARK = { same: " ", gone: "−", new: "+" };

export function Diff({ before, after, names }: { before: string; after: string; names?: [string, string] }) {
  if (before === after) return <p class="muted">No difference.</p>;
  const lines = diffLines(before, after);
  if (lines === null) return <p class="muted">Too large, or too different, to be compared here.</p>;
  return (
    <div class="diff">
      {names && <div class="diff-names"><span>− {names[0]}</span><span>+ {names[1]}</span></div>}
      <pre tabIndex={0} aria-label="Differences">
        {shortened(lines).map((line, index) =>
          line === null ? <span key={index} class="diff-gap">⋯{"\n"}</span> : (
            <span key={index} class={`diff-${line.kind}`}>
              <span class="diff-mark">{MARK[line.kind]}</span>
              {line.text}
              {"\n"}
            </span>
          ),
        )}
      </pre>
    </div>
  );
}

/** Leaves long stretches without a difference out. */
function shortened(lines: DiffLine[]): (DiffLine | null)[] {
  const near = new Set<number>();
  for (const [index, line] of lines.entries()) {
    if (line.kind === "same") continue;
    for (let i = index - 3; i <= index + 3; i++) near.add(i);
  }
  const shown: (DiffLine | null)[] = [];
  for (const [index, line] of lines.entries()) {
    if (near.has(index)) shown.push(line);
    else if (shown.at(-1) !== null) shown.push(null);
  }
  return shown;
}
