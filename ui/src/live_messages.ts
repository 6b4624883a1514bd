// What tabs and the shared worker say to each other.

export type ToWorker = { topics: string[]; address: string } | { bye: true };

export type FromWorker =
  | { event: string; data: string }
  | { connection: "open" | "connecting" };
