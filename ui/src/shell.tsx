// What surrounds every page: navigation, the bar at the top, the palette and the help.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { get, type JobRow, may, type Page, reachable, session, signIn, signOut, signOutEverywhere, type Summary } from "./api";
import { url } from "./base";
import { count, zone } from "./format";
import { shortcuts, useKeys } from "./keys";
import { connection, useRead } from "./live";
import { Announcer, Dialog, Menu, titled, Toasts } from "./parts/basics";
import { Icon } from "./parts/icons";
import { go, Link, path } from "./router";
import { State } from "./status";

interface Place {
  id: string;
  text: string;
  to: string;
  permission: string;
  key: string;
  group: number;
}

export const PLACES: Place[] = [
  { id: "jobs", text: "Jobs", to: "/jobs", permission: "jobs.read", key: "j", group: 0 },
  { id: "approvals", text: "Approvals", to: "/inbox", permission: "approvals.read", key: "a", group: 0 },
  { id: "effects", text: "Effects", to: "/effects", permission: "effects.read", key: "f", group: 0 },
  { id: "errors", text: "Errors", to: "/errors", permission: "jobs.read", key: "e", group: 0 },
  { id: "workers", text: "Workers", to: "/workers", permission: "workers.read", key: "w", group: 1 },
  { id: "processes", text: "Processes", to: "/processes", permission: "processes.read", key: "p", group: 1 },
  { id: "schedules", text: "Schedules", to: "/schedules", permission: "schedules.read", key: "s", group: 1 },
  { id: "metrics", text: "Metrics", to: "/charts", permission: "metrics.read", key: "m", group: 1 },
  { id: "audit", text: "Audit", to: "/audit", permission: "audit.read", key: "u", group: 2 },
  { id: "tokens", text: "Tokens", to: "/tokens", permission: "tokens.manage", key: "t", group: 2 },
];

type Theme = "system" | "light" | "dark";
const stored = localStorage.getItem("perdure.theme");
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");
const folded = signal(localStorage.getItem("perdure.nav") === "folded");
const paletteOpen = signal(false);
const helpOpen = signal(false);
const navOpen = signal(false);

theme.subscribe((value) => {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
});

function nextTheme(): void {
  theme.value = theme.value === "system" ? "light" : theme.value === "light" ? "dark" : "system";
  localStorage.setItem("perdure.theme", theme.value);
}

function switchZone(): void {
  zone.value = zone.value === "utc" ? "local" : "utc";
  localStorage.setItem("perdure.zone", zone.value);
}

export const summary = signal<Summary | null>(null);

export function Shell({ children }: { children: ComponentChildren }) {
  const read = useRead<Summary>(may("jobs.read") ? "summary" : null, { topics: ["jobs", "approvals", "workers"], every: 20, gap: 2000 });
  if (read.data) summary.value = read.data;
  const waiting = summary.value?.approvals ?? 0;
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${titled.value ? `${titled.value} · ` : ""}Perdure`;
  });
  useEffect(() => drawIcon(waiting), [waiting]);
  useKeys("Everywhere", {
    "?": ["Show these keys", () => { helpOpen.value = true; }],
    "mod+k": ["Search and commands", () => { paletteOpen.value = true; }],
    "/": ["Go to the search field", focusSearch],
    t: ["Change the theme", nextTheme],
    ...Object.fromEntries(PLACES.filter((each) => may(each.permission)).map((each) => [`g ${each.key}`, [`Go to ${each.text}`, () => go(each.to)] as [string, () => void]])),
  });
  return (
    <div class={`shell${folded.value ? " folded" : ""}${navOpen.value ? " nav-open" : ""}`}>
      <a class="skip" href="#main">Skip to the content</a>
      <TopBar />
      <Navigation />
      <main id="main" tabIndex={-1}>{children}</main>
      {paletteOpen.value && <Palette close={() => { paletteOpen.value = false; }} />}
      {helpOpen.value && <Help close={() => { helpOpen.value = false; }} />}
      <Toasts />
      <Announcer />
    </div>
  );
}

/** Puts the number of approvals that wait onto the icon of the tab. */
function drawIcon(waiting: number): void {
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (!link) return;
  link.dataset.plain ??= link.href;
  const text = waiting > 99 ? "99+" : String(waiting);
  const width = 9 + text.length * 9;
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#1f2328"/><path d="M9 25V8h8.2a5.4 5.4 0 0 1 0 10.8H13" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" stroke-linejoin="round"/><rect x="${32 - width}" y="13" width="${width}" height="19" rx="9" fill="#8250df"/><text x="${32 - width / 2}" y="28" text-anchor="middle" font-family="system-ui,sans-serif" font-size="15" font-weight="700" fill="#fff">${text}</text></svg>`;
  link.href = waiting > 0 ? `data:image/svg+xml,${encodeURIComponent(icon)}` : link.dataset.plain;
}

function focusSearch(): void {
  const box = document.querySelector<HTMLInputElement>("main [data-search], main input[type=search]");
  if (box) {
    box.focus();
    box.select();
  } else paletteOpen.value = true;
}

function TopBar() {
  const principal = session.value?.principal;
  return (
    <header class="top">
      <button class="icon-button only-narrow" aria-label="Navigation" aria-expanded={navOpen.value} onClick={() => { navOpen.value = !navOpen.value; }}><Icon name="menu" /></button>
      <Link to="/jobs" class="brand" aria-label="Perdure"><Logo /><span>Perdure</span></Link>
      <button class="palette-button" onClick={() => { paletteOpen.value = true; }}>
        <Icon name="search" size={14} />
        <span>Search or run a command</span>
        <kbd>{/Mac/.test(navigator.platform) ? "⌘K" : "Ctrl K"}</kbd>
      </button>
      <span class="spring" />
      <Connection />
      {principal?.tenant && <span class="tenant" title="The tenant whose jobs you see">{principal.tenant}</span>}
      <button class="text-button only-wide" title="Times in UTC or of this browser" onClick={switchZone}>{zone.value === "utc" ? "UTC" : "Local"}</button>
      <button class="icon-button" title={`Theme: ${theme.value}`} aria-label={`Theme: ${theme.value}; change it`} onClick={nextTheme}><Icon name={theme.value === "light" ? "sun" : theme.value === "dark" ? "moon" : "system"} /></button>
      <button class="icon-button only-wide" title="Keyboard (?)" aria-label="Keyboard shortcuts" onClick={() => { helpOpen.value = true; }}><Icon name="key" /></button>
      {principal && <Menu label={`${principal.name || principal.id}: ${principal.roles.join(", ")}`} text={principal.name || principal.id} items={[
        { text: "Sign in again", run: () => signIn(true) },
        ...(session.value?.csrf ? [{ text: "Sign out", run: () => void signOut() }, { text: "Sign out everywhere", run: () => void signOutEverywhere() }] : []),
      ]} />}
    </header>
  );
}

function Logo() {
  return (
    <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
      <rect class="logo-box" width="32" height="32" rx="7" />
      <path class="logo-line" d="M9 25V8h8.2a5.4 5.4 0 0 1 0 10.8H13" fill="none" stroke-width="3" stroke-linecap="round" stroke-linejoin="round" />
      <circle class="logo-dot" cx="22.5" cy="24" r="2.5" />
    </svg>
  );
}

function Connection() {
  const live = reachable.value && connection.value === "open";
  const text = live ? "live" : reachable.value ? "connecting" : "offline";
  return (
    <span class={`connection ${live ? "on" : "off"}`} role="status" title={live ? "Changes appear by themselves" : "Trying to reach the server"}>
      <i aria-hidden="true" />{text}
    </span>
  );
}

function badge(id: string): { value: number; tone: string } | null {
  const known = summary.value;
  if (!known) return null;
  if (id === "approvals") return { value: known.approvals, tone: "attention" };
  if (id === "effects") return { value: known.in_doubt, tone: "attention" };
  if (id === "jobs") return { value: known.counts.NEEDS_ATTENTION ?? 0, tone: "attention" };
  if (id === "workers") return { value: known.stale_workers, tone: "failed" };
  return null;
}

function Navigation() {
  const here = path.value.split("/")[1] || "jobs";
  const places = PLACES.filter((each) => may(each.permission));
  return (
    <nav class="side" aria-label="Pages">
      {[0, 1, 2].map((group) => (
        <ul key={group}>
          {places.filter((each) => each.group === group).map((each) => {
            const sign = badge(each.id);
            return (
              <li key={each.id}>
                <Link to={each.to} title={folded.value ? each.text : `${each.text} (g ${each.key})`} aria-current={each.to === `/${here}` ? "page" : undefined} onClick={() => { navOpen.value = false; }}>
                  <Icon name={each.id} />
                  <span class="nav-text">{each.text}</span>
                  {sign && sign.value > 0 && <span class={`nav-badge tone-${sign.tone}`}>{count(sign.value)}</span>}
                </Link>
              </li>
            );
          })}
        </ul>
      ))}
      <span class="spring" />
      <div class="side-foot">
        <span class="nav-text muted small">{session.value ? `${session.value.version} · ${session.value.store}` : ""}</span>
        <button class="icon-button" aria-label={folded.value ? "Widen the navigation" : "Fold the navigation"} onClick={() => {
          folded.value = !folded.value;
          localStorage.setItem("perdure.nav", folded.value ? "folded" : "open");
        }}><span class="fold"><Icon name="fold" /></span></button>
      </div>
    </nav>
  );
}

interface Command {
  text: string;
  hint: string;
  run: () => void;
  icon?: string;
  row?: JobRow;
}

function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [jobs, setJobs] = useState<JobRow[]>([]);
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => input.current?.focus(), []);
  useEffect(() => {
    const wanted = text.trim();
    if (wanted.length < 2 || !may("jobs.read")) {
      setJobs([]);
      return;
    }
    const mine = new AbortController();
    const timer = setTimeout(() => {
      get<Page<JobRow>>("jobs", { q: wanted, limit: 6 }, mine.signal).then((page) => setJobs(page.items), () => setJobs([]));
    }, 150);
    return () => {
      clearTimeout(timer);
      mine.abort();
    };
  }, [text]);
  const commands = useMemo(() => {
    const low = text.toLowerCase().trim();
    const fixed: Command[] = [
      ...PLACES.filter((each) => may(each.permission)).map((each) => ({ text: each.text, hint: `g ${each.key}`, icon: each.id, run: () => go(each.to) })),
      ...shortcuts.value.filter((each) => each.group !== "Everywhere" && each.text).map((each) => ({ text: each.text, hint: each.keys, icon: "right", run: each.run })),
      { text: "Change the theme", hint: "t", icon: "sun", run: nextTheme },
      { text: "Times in UTC or local", hint: "", icon: "schedules", run: switchZone },
      { text: "Show keyboard shortcuts", hint: "?", icon: "key", run: () => { helpOpen.value = true; } },
      { text: "Sign in again", hint: "", icon: "tokens", run: () => signIn(true) },
    ];
    const found: Command[] = fixed.filter((each) => each.text.toLowerCase().includes(low));
    const rows: Command[] = jobs.map((row) => ({ text: row.name, hint: row.id, row, run: () => go(`/jobs/${row.id}`) }));
    if (/^[0-9a-f-]{4,}$/i.test(low)) rows.push({ text: `Open job ${text.trim()}`, hint: "by its id", icon: "right", run: () => go(`/jobs/${encodeURIComponent(text.trim())}`) });
    if (low) found.push({ text: `Jobs that match “${text.trim()}”`, hint: "query", icon: "jobs", run: () => go(`/jobs?q=${encodeURIComponent(text.trim())}`) });
    return [...rows, ...found];
  }, [text, jobs]);
  const chosen = Math.min(at, commands.length - 1);
  const run = (command: Command | undefined) => {
    close();
    command?.run();
  };
  return (
    <Dialog title="Search or run a command" close={close}>
      <div class="palette">
        <input ref={input} type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={`palette-${chosen}`} aria-label="Search or run a command" placeholder="A page, a command, a job’s name, key or id" value={text}
          onInput={(event) => { setText(event.currentTarget.value); setAt(0); }}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, commands.length - 1));
            else if (event.key === "ArrowUp") setAt(Math.max(0, chosen - 1));
            else if (event.key === "Enter") run(commands[chosen]);
            else return;
            event.preventDefault();
          }} />
        <ul id="palette-list" role="listbox" aria-label="Results">
          {commands.map((command, index) => (
            <li key={`${command.text} ${command.hint}`} id={`palette-${index}`} role="option" aria-selected={index === chosen} class={index === chosen ? "chosen" : ""} onPointerMove={() => setAt(index)} onClick={() => run(command)}>
              {command.row ? <State state={command.row.shown_state} word={false} /> : <Icon name={command.icon ?? "right"} />}
              <bdi class="clip">{command.text}</bdi>
              <span class="hint clip">{command.row ? `${command.row.key ?? ""} ${command.hint.slice(-8)}` : command.hint}</span>
            </li>
          ))}
        </ul>
      </div>
    </Dialog>
  );
}

function Help({ close }: { close: () => void }) {
  const groups = new Map<string, Map<string, string>>();
  for (const { group, keys, text } of shortcuts.value) {
    const known = groups.get(group) ?? new Map<string, string>();
    known.set(keys, text);
    groups.set(group, known);
  }
  return (
    <Dialog title="Keyboard" close={close} wide>
      <div class="help">
        {[...groups].map(([group, keys]) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl>
              {[...keys].map(([key, text]) => (
                <div key={key}>
                  <dt>{key.split(" ").map((each, index) => <kbd key={index}>{each.replace("mod+", "Ctrl/⌘ ")}</kbd>)}</dt>
                  <dd>{text}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <p class="muted small pad">The API of this dashboard: <a href={url("api/openapi.json")}>openapi.json</a></p>
    </Dialog>
  );
}
