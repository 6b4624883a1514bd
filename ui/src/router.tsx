// The address of the page is its state: each filter, tab and selection is in it.
import { computed, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { base, url } from "./base";

const address = signal(location.href);
addEventListener("popstate", () => {
  address.value = location.href;
});

const parsed = computed(() => new URL(address.value));

/** The path below the mount point, such as "/jobs/18e8". */
export const path = computed(() => {
  const whole = parsed.value.pathname;
  return `/${whole.startsWith(base) ? whole.slice(base.length) : ""}`;
});
export const query = computed(() => parsed.value.searchParams);

export function go(to: string, replace = false): void {
  const next = new URL(url(to), location.origin).href;
  if (next === location.href) return;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  const elsewhere = new URL(next).pathname !== parsed.value.pathname;
  address.value = next;
  if (elsewhere) {
    scrollTo(0, 0);
    document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
  }
}

/** The present address with other parameters; null removes one. */
export function withQuery(changes: Record<string, string | null>): string {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  return path.value + (text ? `?${text}` : "");
}

export const setQuery = (changes: Record<string, string | null>, replace = true): void =>
  go(withQuery(changes), replace);

interface Anchor {
  to: string;
  class?: string;
  title?: string;
  "aria-label"?: string;
  "aria-current"?: "page" | undefined;
  onClick?: () => void;
  children?: ComponentChildren;
}

/** A link inside the page; with a modifier key the browser opens it as any other. */
export function Link({ to, onClick, ...rest }: Anchor) {
  return (
    <a
      {...rest}
      href={url(to)}
      onClick={(event) => {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        onClick?.();
        go(to);
      }}
    />
  );
}

/** The parts of a path that a pattern like "/jobs/:id" names; null if it does not match. */
export function match(pattern: string): Record<string, string> | null {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.value.split("/").filter(Boolean);
  if (wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = decodeURIComponent(given[index] ?? "");
    if (part.startsWith(":")) found[part.slice(1)] = value;
    else if (part !== value) return null;
  }
  return found;
}
