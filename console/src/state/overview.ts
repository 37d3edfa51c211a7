// The cluster's health, asked every few seconds for the banner and the first view. Owns: the last
// overview, whether the server answers, and the rates that were seen while the page is open.
// Invariant: at most MOST_POINTS rates are kept.

import { signal } from "@preact/signals";
import { overview as ask } from "../api/cluster";
import { asProblem, isAborted, type Problem } from "../api/problem";
import type { Overview, Rates } from "../api/types";

const EVERY_MS = 5000;
const WHEN_BROKEN_MS = 2000;
const MOST_POINTS = 720;

export interface Point {
  readonly at: number;
  readonly rates: Rates;
}

export const overview = signal<Overview | null>(null);
export const problem = signal<Problem | null>(null);
export const answeredAt = signal<number | null>(null);
export const history = signal<readonly Point[]>([]);

let controller: AbortController | null = null;

/** Begins to ask. */
export function watch(): void {
  stop();
  const mine = new AbortController();
  controller = mine;
  const turn = async (): Promise<void> => {
    if (!document.hidden || overview.value === null) await once(mine.signal);
    if (!mine.signal.aborted) {
      setTimeout(() => void turn(), problem.value?.isUnreachable ? WHEN_BROKEN_MS : EVERY_MS);
    }
  };
  void turn();
}

/** Ends it, and forgets what was known. */
export function stop(): void {
  controller?.abort();
  controller = null;
  overview.value = null;
  problem.value = null;
  answeredAt.value = null;
  history.value = [];
}

async function once(signal_: AbortSignal): Promise<void> {
  try {
    const found = await ask(signal_);
    if (signal_.aborted) return;
    overview.value = found;
    problem.value = null;
    answeredAt.value = Date.now();
    if (found.rates) {
      history.value = [...history.value, { at: Date.now(), rates: found.rates }].slice(-MOST_POINTS);
    }
  } catch (error) {
    if (signal_.aborted || isAborted(error)) return;
    problem.value = asProblem(error);
  }
}
