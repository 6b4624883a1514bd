// Small parts that every page uses.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

import { Problem } from "../api";
import { clock, count, moment, now, relative } from "../format";
import { Icon } from "./icons";

/** How long ago, or until when; the exact time on hover. */
export function Ago({ at }: { at: number | null | undefined }) {
  if (at === null || at === undefined) return <span class="muted">–</span>;
  return <time dateTime={new Date(at * 1000).toISOString()} title={moment(at)}>{relative(at, now.value)}</time>;
}

export function At({ at, seconds = false }: { at: number | null | undefined; seconds?: boolean }) {
  if (at === null || at === undefined) return <span class="muted">–</span>;
  return <time dateTime={new Date(at * 1000).toISOString()} title={`${moment(at)}, ${relative(at, now.value)}`}>{clock(at, seconds)}</time>;
}

// What is said to somebody who does not see the page change.
const announced = signal("");
export function announce(text: string): void {
  announced.value = "";
  setTimeout(() => {
    announced.value = text;
  }, 50);
}

export function Announcer() {
  return <div class="sr" role="status" aria-live="polite">{announced.value}</div>;
}

interface Toast {
  no: number;
  text: string;
  bad: boolean;
}
const toasts = signal<Toast[]>([]);
let numbered = 0;

export function toast(text: string, bad = false): void {
  const no = ++numbered;
  toasts.value = [...toasts.value.slice(-3), { no, text, bad }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((each) => each.no !== no);
  }, bad ? 9000 : 4500);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((each) => (
        <div key={each.no} class={each.bad ? "toast bad" : "toast"}>
          <span class={each.bad ? "tone-failed" : "tone-done"} aria-hidden="true">{each.bad ? "✗" : "✓"}</span>
          {each.text}
        </div>
      ))}
    </div>
  );
}

export function Trouble({ problem, again }: { problem: Problem; again?: () => void }) {
  const kind = problem.status === 403 ? "You may not see this" : problem.status === 404 ? "Not found" : "This could not be read";
  return (
    <div class="trouble" role="alert">
      <strong><span class="tone-failed" aria-hidden="true">✗</span> {kind}</strong>
      <span>{problem.message}</span>
      {problem.errors.filter((each) => !problem.message.includes(each)).map((each) => <span key={each} class="muted">{each}</span>)}
      {again && problem.status !== 403 && <button class="button small" onClick={again}>Try again</button>}
    </div>
  );
}

export function Empty({ title, children, code }: { title: string; children?: ComponentChildren; code?: string }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children && <p>{children}</p>}
      {code && <CodeBlock text={code} />}
    </div>
  );
}

export function CodeBlock({ text }: { text: string }) {
  return (
    <div class="code-block">
      <pre tabIndex={0}>{text}</pre>
      <Copy text={text} />
    </div>
  );
}

export function Loading({ rows = 6 }: { rows?: number }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 250); // what comes at once needs no sign
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="loading" aria-busy="true">
      <span class="sr">Loading</span>
      {late && Array.from({ length: rows }, (_, index) => <div key={index} class="bone" />)}
    </div>
  );
}

export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // On plain HTTP there is no clipboard for scripts, except by this.
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

export function Copy({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  return (
    <button class="icon-button copy" title={label} aria-label={label} onClick={() => void copyText(typeof text === "string" ? text : text())}>
      <Icon name="copy" size={14} />
    </button>
  );
}

export function Meter({ value, most, label }: { value: number; most: number; label: string }) {
  const share = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  return (
    <span class="meter" role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
      <span style={{ width: `${share * 100}%` }} />
    </span>
  );
}

export function Labels({ labels, on }: { labels: Record<string, string>; on?: (name: string, value: string) => void }) {
  const entries = Object.entries(labels);
  return (
    <>
      {entries.map(([name, value]) =>
        on ? (
          <button key={name} class="label" title={`Only jobs with ${name}=${value}`} onClick={() => on(name, value)}>{name}={value}</button>
        ) : (
          <span key={name} class="label"><bdi>{name}={value}</bdi></span>
        ),
      )}
    </>
  );
}

interface DialogProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
  wide?: boolean;
}

/** A modal dialog of the browser: it keeps the focus, and Escape closes it. */
export function Dialog({ title, close, children, wide }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = element.current;
    const before = document.activeElement as HTMLElement | null;
    dialog?.showModal();
    return () => {
      dialog?.close();
      before?.focus?.({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "dialog wide" : "dialog"}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onMouseDown={(event) => {
        if (event.target === element.current) close();
      }}
    >
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <button class="icon-button" aria-label="Close" onClick={close}><Icon name="close" /></button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface AskProps {
  title: string;
  verb: string;
  danger?: boolean;
  /** null: no reason is asked for. */
  reason?: string | null;
  needsReason?: boolean;
  disabled?: boolean;
  wide?: boolean;
  /** Does it; "stay" leaves the dialog open. */
  run: (reason: string) => Promise<void | "stay">;
  close: () => void;
  children?: ComponentChildren;
}

/** Says what will be done before it is done, and shows why it could not be. */
export function Ask({ title, verb, danger, reason = "Why, for the log", needsReason, disabled, wide, run, close, children }: AskProps) {
  const [why, setWhy] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const id = useId();
  const submit = async () => {
    setBusy(true);
    setProblem(null);
    try {
      if ((await run(why)) !== "stay") close();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, "", String(error)));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close} wide={wide ?? false}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!busy && !disabled) void submit();
        }}
      >
        <div class="dialog-content">
          {children}
          {reason !== null && (
            <div class="field">
              <label for={id}>{reason}</label>
              <textarea id={id} rows={2} maxLength={2000} required={needsReason ?? false} value={why} onInput={(event) => setWhy(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) event.currentTarget.form?.requestSubmit();
                }} />
            </div>
          )}
          {problem && <Trouble problem={problem} />}
        </div>
        <footer>
          <button type="button" class="button" onClick={close}>Cancel</button>
          <button type="submit" class={danger ? "button danger" : "button primary"} disabled={busy || (disabled ?? false)}>{verb}</button>
        </footer>
      </form>
    </Dialog>
  );
}

interface MenuItem {
  text: string;
  hint?: string;
  run: () => void;
}

export function Menu({ label, items, icon = "more", text }: { label: string; items: MenuItem[]; icon?: string; text?: string }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    box.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const away = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const move = (step: number) => {
    const all = [...(box.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    all[(at + step + all.length) % all.length]?.focus();
  };
  if (items.length === 0) return null;
  return (
    <div class="menu" ref={box}>
      {text ? <button class="who" aria-haspopup="menu" aria-expanded={open} title={label} onClick={() => setOpen(!open)}><bdi>{text}</bdi></button> : <button class="button square" aria-haspopup="menu" aria-expanded={open} aria-label={label} title={label} onClick={() => setOpen(!open)}><Icon name={icon} /></button>}
      {open && (
        <div
          class="menu-items"
          role="menu"
          aria-label={label}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") move(1);
            else if (event.key === "ArrowUp") move(-1);
            else if (event.key === "Escape") {
              setOpen(false);
              box.current?.querySelector<HTMLElement>("button")?.focus();
            } else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        >
          {items.map((item) => (
            <button key={item.text} role="menuitem" onClick={() => { setOpen(false); item.run(); }}>
              <span>{item.text}</span>
              {item.hint && <span class="hint">{item.hint}</span>}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

interface TabsProps<T extends string> {
  label: string;
  tabs: { id: T; text: string; count?: number | null }[];
  active: T;
  choose: (id: T) => void;
}

export function Tabs<T extends string>({ label, tabs, active, choose }: TabsProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  return (
    <div
      class="tabs"
      role="tablist"
      aria-label={label}
      ref={box}
      onKeyDown={(event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (!step) return;
        event.preventDefault();
        const at = tabs.findIndex((tab) => tab.id === active);
        const next = tabs[(at + step + tabs.length) % tabs.length];
        if (!next) return;
        choose(next.id);
        box.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
      }}
    >
      {tabs.map((tab) => (
        <button key={tab.id} role="tab" data-tab={tab.id} id={`tab-${tab.id}`} aria-controls="tab-panel" aria-selected={tab.id === active} tabIndex={tab.id === active ? 0 : -1} onClick={() => choose(tab.id)}>
          {tab.text}
          {tab.count !== undefined && tab.count !== null && tab.count > 0 && <span class="count">{count(tab.count)}</span>}
        </button>
      ))}
    </div>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  options: [T, string][];
  value: T;
  choose: (value: T) => void;
}

/** A few options of which one is chosen. */
export function Choice<T extends string>({ label, options, value, choose }: ChoiceProps<T>) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map(([id, text]) => (
        <button key={id} aria-pressed={id === value} onClick={() => choose(id)}>{text}</button>
      ))}
    </div>
  );
}

export function Risk({ level }: { level: string }) {
  return <span class={`risk risk-${level.toLowerCase()}`}>{level}</span>;
}

export function PageHead({ title, says, children }: { title: string; says?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="page-head">
      <div>
        <h1>{title}</h1>
        {says && <p class="says">{says}</p>}
      </div>
      {children && <div class="actions">{children}</div>}
    </div>
  );
}

/** The state of a page's title, with what waits for people before it. */
export function useTitle(text: string): void {
  useEffect(() => {
    titled.value = text;
  }, [text]);
}
export const titled = signal("");
