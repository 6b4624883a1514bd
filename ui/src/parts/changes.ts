// What a person changed of arguments that are shown only in part: the rest is not sent back.
import type { Json } from "../api";

export interface Change {
  path: (string | number)[];
  /** Without it, what is there is taken out. */
  value?: Json;
}

/** What stands for a value that is not shown; the server refuses it, too. */
const MARKER = /^\[removed(?:: (?:…[\p{L}\p{N}_]{4})?(?:, )?(?:fp [0-9a-f]{8})?)?\]$/u;

export const isMarker = (value: Json): boolean => typeof value === "string" && MARKER.test(value.trim());

const isObject = (value: Json): value is { [name: string]: Json } => value !== null && typeof value === "object" && !Array.isArray(value);

const same = (a: Json, b: Json): boolean => JSON.stringify(a) === JSON.stringify(b);

export function hasMarker(value: Json): boolean {
  if (Array.isArray(value)) return value.some(hasMarker);
  return isObject(value) ? Object.values(value).some(hasMarker) : isMarker(value);
}

/** Whether a number of an account is shown in part: it can be revealed, passwords and keys cannot. */
export function hasAccount(value: Json): boolean {
  if (Array.isArray(value)) return value.some(hasAccount);
  return isObject(value) ? Object.values(value).some(hasAccount) : isMarker(value) && value !== "[removed]";
}

/** Returns the changes from what was shown to what was written, each as small as what is hidden beside it needs. */
export function changesOf(before: Json, after: Json, path: (string | number)[] = []): Change[] {
  if (same(before, after)) return [];
  if (isObject(before) && isObject(after) && (path.length === 0 || hasMarker(before))) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name): Change[] => {
      const [old, now] = [before[name], after[name]];
      if (now === undefined) return [{ path: [...path, name] }];
      return old === undefined ? [{ path: [...path, name], value: now }] : changesOf(old, now, [...path, name]);
    });
  }
  if (Array.isArray(before) && Array.isArray(after) && before.length === after.length && hasMarker(before)) {
    return before.flatMap((old, index) => changesOf(old, after[index] ?? null, [...path, index]));
  }
  return [{ path, value: after }];
}

/** Says which change would put what is shown in the place of a value; empty if none does. */
export function misplaced(changes: Change[]): string {
  const wrong = changes.find((each) => each.value !== undefined && hasMarker(each.value));
  return wrong ? `${wrong.path.join(".")}: what stands for a value that is not shown cannot be moved or copied. Leave it where it was, or write the value itself.` : "";
}
