// The query of the list of jobs: one text, which is completed while it is typed.
import { useEffect, useRef, useState } from "preact/hooks";

import { get } from "../api";
import { Icon } from "./icons";

interface Suggestion {
  text: string;
  kind: string;
  hint: string;
  start?: number;
  end?: number;
}

export function QueryBox({ value, change }: { value: string; change: (text: string) => void }) {
  const [text, setText] = useState(value);
  const [found, setFound] = useState<Suggestion[]>([]);
  const [at, setAt] = useState(-1);
  const [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  const asked = useRef(0);
  useEffect(() => setText(value), [value]);
  const complete = (query: string, cursor: number) => {
    const mine = ++asked.current;
    get<{ items: Suggestion[] }>("jobs/complete", { q: query, at: cursor }).then(
      (answer) => {
        if (mine === asked.current) setFound(answer.items);
      },
      () => setFound([]),
    );
  };
  const typed = (query: string) => {
    setText(query);
    setOpen(true);
    setAt(-1);
    complete(query, input.current?.selectionStart ?? query.length);
    clearTimeout(timer.current);
    // A term whose value is still to come is no query yet.
    if (!/(:|")$/.test(query)) timer.current = window.setTimeout(() => change(query.trim()), 350);
  };
  const take = (suggestion: Suggestion) => {
    const cursor = input.current?.selectionStart ?? text.length;
    const start = suggestion.start ?? text.slice(0, cursor).search(/\S*$/);
    const end = suggestion.end ?? cursor;
    const whole = !/[:.]$/.test(suggestion.text);
    const next = `${text.slice(0, start)}${suggestion.text}${whole ? " " : ""}${text.slice(end).replace(/^ /, "")}`;
    const place = start + suggestion.text.length + (whole ? 1 : 0);
    setText(next);
    setAt(-1);
    requestAnimationFrame(() => input.current?.setSelectionRange(place, place));
    if (whole) {
      clearTimeout(timer.current);
      change(next.trim());
      setFound([]);
    } else complete(next, place);
  };
  const shown = open && found.length > 0;
  return (
    <div class="query-box">
      <Icon name="search" size={14} />
      <input
        ref={input}
        data-search
        type="text"
        class="mono"
        role="combobox"
        aria-label="Query: which jobs"
        aria-expanded={shown}
        aria-controls="query-list"
        aria-autocomplete="list"
        aria-activedescendant={at >= 0 ? `query-${at}` : undefined}
        spellcheck={false}
        autocomplete="off"
        placeholder="state:failed name:migrate label.team:data created:<2h"
        value={text}
        onInput={(event) => typed(event.currentTarget.value)}
        onFocus={() => { setOpen(true); complete(text, text.length); }}
        onBlur={() => setTimeout(() => setOpen(false), 150)}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown" && shown) setAt(Math.min(at + 1, found.length - 1));
          else if (event.key === "ArrowUp" && shown) setAt(Math.max(at - 1, -1));
          else if ((event.key === "Enter" || event.key === "Tab") && shown && found[at]) take(found[at]);
          else if (event.key === "Enter") { clearTimeout(timer.current); setOpen(false); change(text.trim()); }
          else if (event.key === "Escape") { if (shown) setOpen(false); else input.current?.blur(); }
          else return;
          event.preventDefault();
        }}
      />
      {text && <button class="icon-button" aria-label="Clear the query" onClick={() => { setText(""); change(""); }}><Icon name="close" size={12} /></button>}
      {shown && (
        <ul id="query-list" role="listbox" aria-label="Completions" class="completions">
          {found.slice(0, 12).map((each, index) => (
            <li key={each.text} id={`query-${index}`} role="option" aria-selected={index === at} class={index === at ? "chosen" : ""} onMouseDown={(event) => { event.preventDefault(); take(each); }}>
              <span class="mono clip">{each.text}</span>
              <span class="hint">{each.hint}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
