// The states of jobs and steps: each has a glyph, a word and a colour, which mean nothing else.

interface Look {
  glyph: string;
  word: string;
  tone: string;
}

const LOOKS: Record<string, Look> = {
  COMPLETED: { glyph: "✓", word: "completed", tone: "done" },
  SUCCEEDED: { glyph: "✓", word: "succeeded", tone: "done" },
  DONE: { glyph: "✓", word: "done", tone: "done" },
  APPROVED: { glyph: "✓", word: "approved", tone: "done" },
  RUNNING: { glyph: "●", word: "running", tone: "running" },
  WAITING: { glyph: "◌", word: "waiting", tone: "waiting" },
  PENDING: { glyph: "◌", word: "pending", tone: "waiting" },
  SLEEPING: { glyph: "◌", word: "sleeping", tone: "waiting" },
  INTENT: { glyph: "◌", word: "under way", tone: "waiting" },
  RETRYING: { glyph: "↻", word: "retrying", tone: "retrying" },
  STUCK: { glyph: "!", word: "stuck", tone: "failed" },
  STALE_HEARTBEAT: { glyph: "↻", word: "silent worker", tone: "retrying" },
  SCHEDULED: { glyph: "◌", word: "scheduled", tone: "waiting" },
  WAITING_FOR_APPROVAL: { glyph: "!", word: "approval", tone: "attention" },
  WAITING_FOR_MESSAGE: { glyph: "◌", word: "message", tone: "waiting" },
  WAITING_FOR_CHILDREN: { glyph: "◌", word: "children", tone: "waiting" },
  NEEDS_ATTENTION: { glyph: "!", word: "attention", tone: "attention" },
  IN_DOUBT: { glyph: "!", word: "in doubt", tone: "attention" },
  FAILED: { glyph: "✗", word: "failed", tone: "failed" },
  REJECTED: { glyph: "✗", word: "rejected", tone: "failed" },
  COMPENSATION_FAILED: { glyph: "!", word: "undo failed", tone: "attention" },
  COMPENSATING: { glyph: "↶", word: "compensating", tone: "undo" },
  COMPENSATED: { glyph: "↶", word: "compensated", tone: "undo" },
  UNDONE: { glyph: "↶", word: "undone", tone: "undo" },
  PAUSED: { glyph: "–", word: "paused", tone: "off" },
  CANCELLED: { glyph: "–", word: "cancelled", tone: "off" },
  SKIPPED: { glyph: "–", word: "skipped", tone: "off" },
  BORROWED: { glyph: "–", word: "borrowed", tone: "off" },
  EXPIRED: { glyph: "–", word: "expired", tone: "off" },
  WITHDRAWN: { glyph: "–", word: "withdrawn", tone: "off" },
};

export function look(state: string): Look {
  return LOOKS[state.toUpperCase().replaceAll(" ", "_")] ?? { glyph: "·", word: state.toLowerCase().replaceAll("_", " "), tone: "off" };
}

export const JOB_STATES = [
  "NEEDS_ATTENTION", "FAILED", "RUNNING", "WAITING", "PENDING", "PAUSED", "COMPENSATING",
  "COMPLETED", "COMPENSATED", "CANCELLED",
];

export function State({ state, word = true }: { state: string; word?: boolean }) {
  const { glyph, word: text, tone } = look(state);
  return (
    <span class={`state tone-${tone}`}>
      <span class="glyph" aria-hidden="true">{glyph}</span>
      <span class={word ? "word" : "sr"}>{text}</span>
    </span>
  );
}
