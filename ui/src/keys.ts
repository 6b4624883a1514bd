// Keyboard: single keys and two-key sequences, never while somebody types.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

interface Shortcut {
  keys: string;
  text: string;
  group: string;
  run: () => void;
}

export const shortcuts = signal<Shortcut[]>([]);
let first = "";
let firstAt = 0;

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && (target as HTMLInputElement).type !== "checkbox");
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  const command = event.metaKey || event.ctrlKey;
  const key = (command ? "mod+" : "") + event.key;
  const found = (keys: string) => shortcuts.value.findLast((each) => each.keys === keys);
  const dialog = document.querySelector("dialog[open]");
  if (!command && (typing(event.target) || dialog)) return;
  if (event.altKey) return;
  const sequence = Date.now() - firstAt < 1200 ? found(`${first} ${key}`) : undefined;
  const shortcut = sequence ?? found(key);
  if (shortcut) {
    event.preventDefault();
    first = "";
    shortcut.run();
  } else if (!command && shortcuts.value.some((each) => each.keys.startsWith(`${key} `))) {
    first = key;
    firstAt = Date.now();
  }
});

type Given = Record<string, [text: string, run: () => void]>;

/** Shortcuts while the component is there; the latest of the same keys wins. */
export function useKeys(group: string, given: Given): void {
  const latest = useRef(given);
  latest.current = given;
  const key = Object.keys(given).join(" ");
  useEffect(() => {
    const mine = Object.entries(latest.current).map(([keys, [text]]) => ({
      keys,
      text,
      group,
      run: () => latest.current[keys]?.[1](),
    }));
    shortcuts.value = [...shortcuts.value, ...mine];
    return () => {
      shortcuts.value = shortcuts.value.filter((each) => !mine.includes(each));
    };
  }, [group, key]);
}
