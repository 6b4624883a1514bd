// Rows of one height, of which only those in sight exist.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  count: number;
  height: number;
  row: (index: number) => ComponentChildren;
  /** Rows beyond the edges, so that a quick scroll shows no gap. */
  beyond?: number;
  /** Called when the last row comes near. */
  end?: () => void;
  /** The row to keep in sight. */
  focus?: number | null;
  /** Scrolls by itself within this many pixels; else with the page. */
  within?: number;
  label: string;
  role?: "rowgroup" | "group";
}

export function VirtualRows({ count, height, row, beyond = 8, end, focus, within, label, role }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 60]);
  const place = () => {
    const element = box.current;
    if (!element) return;
    const above = within ? element.scrollTop : Math.max(0, -element.getBoundingClientRect().top);
    const seen = within ? element.clientHeight : innerHeight;
    const from = Math.max(0, Math.floor(above / height) - beyond);
    const to = Math.ceil((above + seen) / height) + beyond;
    setRange((old) => (old[0] === from && old[1] === to ? old : [from, to]));
  };
  useLayoutEffect(place, [count, height, within]);
  useEffect(() => {
    const element: HTMLElement | Window | null = within ? box.current : window;
    element?.addEventListener("scroll", place, { passive: true });
    addEventListener("resize", place);
    return () => {
      element?.removeEventListener("scroll", place);
      removeEventListener("resize", place);
    };
  }, [height, within, count]);
  useEffect(() => {
    if (end && range[1] >= count - 20) end();
  }, [range, count, end]);
  useEffect(() => {
    if (focus === null || focus === undefined || focus < 0) return;
    const element = box.current;
    if (!element) return;
    if (within) {
      const top = focus * height;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top + height > element.scrollTop + element.clientHeight) element.scrollTop = top + height - element.clientHeight;
      return;
    }
    const top = element.getBoundingClientRect().top + focus * height;
    if (top < 110) scrollBy(0, top - 110);
    else if (top + height > innerHeight - 60) scrollBy(0, top + height - innerHeight + 60);
  }, [focus, height, within]);
  const [from, to] = [Math.min(range[0], count), Math.min(range[1], count)];
  const rows: ComponentChildren[] = [];
  for (let index = from; index < to; index++) rows.push(row(index));
  const inside = (
    <div class="virtual" style={{ height: `${count * height}px` }} role="presentation">
      <div class="virtual-window" style={{ transform: `translateY(${from * height}px)` }} role="presentation">{rows}</div>
    </div>
  );
  return within ? (
    <div ref={box} class="virtual-box" style={{ maxHeight: `${within}px` }} tabIndex={0} role={role ?? "group"} aria-label={label}>{inside}</div>
  ) : (
    <div ref={box} role={role ?? "group"} aria-label={label}>{inside}</div>
  );
}
