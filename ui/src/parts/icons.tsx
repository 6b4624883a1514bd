// Icons of the navigation and of buttons: strokes on a grid of 16.
const PATHS: Record<string, string> = {
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  approvals: "M2.5 8.5l3 3 7-7M9 12.5h4.5",
  effects: "M8.5 1.5 3.5 9h4l-.5 5.5 5-7.5h-4z",
  workers: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  processes: "M8 2v4M8 6H4v4M8 6h4v4M2.5 10h3v3.5h-3zM10.5 10h3v3.5h-3z",
  schedules: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M8 5v3.2l2 1.6",
  errors: "M8 2.5 1.8 13.5h12.4zM8 6.5v3M8 11.6v.01",
  metrics: "M2.5 2.5v11h11M5 10l2.5-3 2 1.8L13 5",
  audit: "M4 2h6l2.5 2.5V14H4zM6.5 7h4M6.5 10h4",
  tokens: "M10.3 2.5a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4M8 8l-5.5 5.5M4.5 11.5 6 13",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4 14 14",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  moon: "M13.2 9.7A5.6 5.6 0 0 1 6.3 2.8a5.6 5.6 0 1 0 6.9 6.9",
  system: "M2.5 3h11v7.5h-11zM6 13.5h4M8 10.5v3",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  download: "M8 2.5v7.5M4.8 7.2 8 10.4l3.2-3.2M2.5 13.5h11",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  star: "M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4L8 11.4l-3.6 1.9.7-4L2.2 6.5l4-.6z",
  key: "M2.5 4.5h11v7h-11zM5 7h.01M8 7h.01M11 7h.01M5.5 9.5h5",
  fold: "M10 3.5 5.5 8l4.5 4.5",
};

export function Icon({ name, size = 16 }: { name: string; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
