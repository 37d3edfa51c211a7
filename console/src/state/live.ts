// A live tail: the newest records of a topic as they come. Owns: the connection and the ring of
// records. Invariants: the ring has at most MOST_ROWS records and MOST_CHARACTERS of text, whatever
// comes; what is shown changes at most four times a second.

import { signal, type Signal } from "@preact/signals";
import { listen } from "../api/events";
import { withQuery, type Query } from "../api/http";
import type { Problem } from "../api/problem";
import type { LiveProgress, MessageRecord } from "../api/types";

const MOST_ROWS = 2000;
const MOST_CHARACTERS = 12_000_000;
const FLUSH_MS = 250;

export type LiveState = "connecting" | "open" | "broken" | "ended";

export interface LiveView {
  /** Newest first. */
  readonly rows: readonly MessageRecord[];
  readonly received: number;
  readonly progress: LiveProgress | null;
  readonly perSecond: number;
}

export interface Live {
  readonly view: Signal<LiveView>;
  readonly state: Signal<LiveState>;
  readonly problem: Signal<Problem | null>;
  readonly isPaused: Signal<boolean>;
  readonly clear: () => void;
  readonly stop: () => void;
}

function weight(record: MessageRecord): number {
  let sum = 200 + (record.key?.text.length ?? 0) + (record.value?.text.length ?? 0);
  for (const header of record.headers) sum += header.name.length + (header.value?.text.length ?? 0);
  return sum;
}

/** Begins to follow a topic; `stop` ends it. */
export function follow(path: string, query: Query): Live {
  const view = signal<LiveView>({ rows: [], received: 0, progress: null, perSecond: 0 });
  const state = signal<LiveState>("connecting");
  const problem = signal<Problem | null>(null);
  const isPaused = signal(false);
  const controller = new AbortController();
  let ring: MessageRecord[] = [];
  let characters = 0;
  let received = 0;
  let progress: LiveProgress | null = null;
  let isChanged = false;
  let secondAt = Date.now();
  let secondCount = 0;
  let perSecond = 0;

  const trim = (): void => {
    let start = Math.max(0, ring.length - MOST_ROWS);
    for (let index = 0; index < start; index += 1) characters -= weight(ring[index] as MessageRecord);
    while (characters > MOST_CHARACTERS && start < ring.length - 1) {
      characters -= weight(ring[start] as MessageRecord);
      start += 1;
    }
    if (start > 0) ring = ring.slice(start);
  };
  const flush = (): void => {
    const now = Date.now();
    if (now - secondAt >= 1000) {
      perSecond = Math.round(((received - secondCount) * 1000) / (now - secondAt));
      secondAt = now;
      secondCount = received;
      isChanged = true;
    }
    if (!isChanged) return;
    isChanged = false;
    trim();
    const rows = isPaused.value ? view.value.rows : ring.toReversed();
    view.value = { rows, received, progress, perSecond };
  };
  const timer = setInterval(flush, FLUSH_MS);

  void listen(
    withQuery(path, query),
    {
      open: () => {
        state.value = "open";
        problem.value = null;
      },
      event: (name, data) => {
        if (name === "record" || name === "message") {
          const record = JSON.parse(data) as MessageRecord;
          ring.push(record);
          characters += weight(record);
          received += 1;
          if (ring.length > 2 * MOST_ROWS || characters > 2 * MOST_CHARACTERS) trim();
        } else if (name === "progress") progress = JSON.parse(data) as LiveProgress;
        isChanged = true;
      },
      broken: (found) => {
        state.value = "broken";
        problem.value = found;
      },
      ended: (found) => {
        state.value = "ended";
        problem.value = found;
      },
    },
    controller.signal,
  );

  return {
    view,
    state,
    problem,
    isPaused,
    clear: () => {
      ring = [];
      characters = 0;
      view.value = { ...view.value, rows: [] };
    },
    stop: () => {
      clearInterval(timer);
      controller.abort();
      ring = [];
    },
  };
}
