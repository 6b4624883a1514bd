// A payload that may have megabytes: nothing is parsed or drawn before somebody asks for it.
import { useMemo, useRef, useState } from "preact/hooks";

import { getText, type Json, type Large, Problem } from "../api";
import { bytes, count, plural } from "../format";
import { Copy, Trouble } from "./basics";
import { Icon } from "./icons";
import { VirtualRows } from "./virtual";

const MOST_INLINE = 20_000; // characters
const LONGEST_LINE = 1000;
const LINE = 20;

export function pretty(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

interface Props {
  value: Json | undefined;
  /** What there is in place of a large value. */
  large?: Large | undefined;
  title: string;
  name?: string;
  /** A short one is a line. */
  brief?: boolean;
}

const BRIEF = 200; // characters

export function Payload({ value, large, title, name = "payload", brief }: Props) {
  const line = brief && !large ? (JSON.stringify(value ?? null) ?? "") : "";
  if (line && line.length <= BRIEF) {
    return (
      <section class="payload brief" aria-label={title}>
        <h3>{title}</h3>
        {value === undefined || value === null ? <span class="muted">none</span> : <><code title={line}><bdi>{spaced(line)}</bdi></code><Copy text={line} label={`Copy ${title}`} /></>}
      </section>
    );
  }
  return (
    <section class="payload" aria-label={title}>
      {large ? <LargePayload large={large} title={title} name={name} /> : <SmallPayload value={value} title={title} name={name} />}
    </section>
  );
}

/** JSON of one line with the spaces that people put. */
const spaced = (line: string): string => line.replace(/("(?:[^"\\]|\\.)*")|([,:])/g, (_, text: string | undefined, sign: string) => text ?? `${sign} `);

function Head({ title, size, children }: { title: string; size: string; children?: preact.ComponentChildren }) {
  return (
    <div class="payload-head">
      <h3>{title}</h3>
      <span class="muted">{size}</span>
      <span class="spring" />
      {children}
    </div>
  );
}

function SmallPayload({ value, title, name }: { value: Json | undefined; title: string; name: string }) {
  const text = useMemo(() => pretty(value), [value]);
  if (value === undefined || value === null) {
    return <Head title={title} size="none" />;
  }
  return (
    <>
      <Head title={title} size={bytes(new Blob([text]).size)}>
        <Copy text={text} label={`Copy ${title}`} />
        <Download text={text} name={name} title={title} />
      </Head>
      {text.length > MOST_INLINE ? <Lines text={text} /> : <pre class="json" tabIndex={0}><Highlighted text={text} /></pre>}
    </>
  );
}

/** JSON with its keys set back; a text that is no JSON stays as it is. */
function Highlighted({ text }: { text: string }) {
  const parts = text.split(/^(\s*"(?:[^"\\]|\\.)*":)/m);
  if (parts.length < 2) return <bdi>{text}</bdi>;
  return <>{parts.map((part, index) => (index % 2 ? <span key={index} class="json-key">{part}</span> : part))}</>;
}

function Download({ text, name, title }: { text: string; name: string; title: string }) {
  return (
    <button
      class="icon-button"
      title={`Download ${title}`}
      aria-label={`Download ${title}`}
      onClick={() => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
        link.download = `${name}.json`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      }}
    >
      <Icon name="download" size={14} />
    </button>
  );
}

function LargePayload({ large, title, name }: { large: Large; title: string; name: string }) {
  const { href } = large;
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const load = async () => {
    if (href === null) return;
    setBusy(true);
    setProblem(null);
    try {
      setText(laidOut(await getText(href)));
    } catch (error) {
      setProblem(error as Problem);
    }
    setBusy(false);
  };
  if (text !== null) {
    return (
      <>
        <Head title={title} size={bytes(large.bytes)}>
          <Copy text={text} label={`Copy ${title}`} />
          <Download text={text} name={name} title={title} />
        </Head>
        <Lines text={text} />
      </>
    );
  }
  return (
    <>
      <Head title={title} size={bytes(large.bytes)}>
        {href === null ? <span class="muted">only its digest is kept</span> : <button class="button small" disabled={busy} onClick={() => void load()}>{busy ? "Loading…" : `Load ${bytes(large.bytes)}`}</button>}
        {href !== null && <a class="icon-button" href={href} download={`${name}.json`} title={`Download ${title}`} aria-label={`Download ${title}`}><Icon name="download" size={14} /></a>}
      </Head>
      {problem && <Trouble problem={problem} />}
      <pre class="json faded" tabIndex={0}>{large.preview}</pre>
    </>
  );
}

function laidOut(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Cuts lines to a length that a browser draws quickly. */
function cut(text: string): string[] {
  const lines: string[] = [];
  for (const line of text.split("\n")) {
    if (line.length <= LONGEST_LINE) lines.push(line);
    else for (let at = 0; at < line.length; at += LONGEST_LINE) lines.push(line.slice(at, at + LONGEST_LINE));
  }
  return lines;
}

function Lines({ text }: { text: string }) {
  const lines = useMemo(() => cut(text), [text]);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  const found = useMemo(() => {
    if (wanted.length < 2) return [];
    const low = wanted.toLowerCase();
    const hits: number[] = [];
    for (let index = 0; index < lines.length && hits.length < 10_000; index++) {
      if (lines[index]?.toLowerCase().includes(low)) hits.push(index);
    }
    return hits;
  }, [lines, wanted]);
  const current = found.length > 0 ? found[at % found.length] : null;
  const width = String(lines.length).length;
  return (
    <div class="lines">
      <div class="lines-search">
        <input ref={input} type="search" placeholder="Search in it" aria-label="Search in the payload" value={wanted}
          onInput={(event) => { setWanted(event.currentTarget.value); setAt(0); }}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || found.length === 0) return;
            event.preventDefault();
            setAt((at + (event.shiftKey ? found.length - 1 : 1)) % found.length);
          }} />
        <span class="muted" role="status">{wanted.length < 2 ? plural(lines.length, "line") : found.length === 0 ? "not found" : `${count(at % found.length + 1)} of ${plural(found.length, "line")}`}</span>
      </div>
      <VirtualRows label="Payload" count={lines.length} height={LINE} within={420} focus={current} beyond={20}
        row={(index) => (
          <div key={index} class={index === current ? "line hit" : "line"}>
            <span class="line-no" style={{ width: `${width + 1}ch` }}>{index + 1}</span>
            <span>{lines[index]}</span>
          </div>
        )} />
    </div>
  );
}
