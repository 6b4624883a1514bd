// One stream of server-sent events for a set of topics, which may change.
import type { FromWorker } from "./live_messages";

export class LiveStream {
  private source: EventSource | null = null;
  private topics = "";
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly tell: (message: FromWorker) => void) {}

  /** Follows these topics from now on. */
  follow(address: string, topics: Iterable<string>): void {
    // Those of everything first; of single jobs as many as a stream takes.
    const wanted = [...new Set(topics)].sort((a, b) => Number(a.includes(":")) - Number(b.includes(":")) || a.localeCompare(b)).slice(0, 20).join(",");
    if (wanted === this.topics && this.source) return;
    this.topics = wanted;
    clearTimeout(this.timer);
    // Pages that open at the same moment ask for their topics one after the other.
    this.timer = setTimeout(() => this.open(address), 30);
  }

  private open(address: string): void {
    this.source?.close();
    this.source = null;
    if (!this.topics) return;
    const source = new EventSource(`${address}?topics=${encodeURIComponent(this.topics)}`);
    this.source = source;
    source.onopen = () => this.tell({ connection: "open" });
    source.onerror = () => {
      this.tell({ connection: "connecting" });
      if (source.readyState === EventSource.CLOSED) this.again(address, 3000);
    };
    source.addEventListener("bye", () => {
      this.tell({ connection: "connecting" });
      this.again(address, 1000);
    });
    for (const name of ["jobs", "job", "approvals", "workers", "output", "stale", "message"]) {
      source.addEventListener(name, (event) => {
        this.tell({ event: name, data: (event as MessageEvent<string>).data });
      });
    }
  }

  private again(address: string, delay: number): void {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(address), delay);
  }
}
