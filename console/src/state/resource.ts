// What a view has asked for: the newest answer, the problem of the last question, and asking again.
// Owns: the questions of one component and a small memory of answers, so that going back shows at
// once what was known. Invariant: an answer that comes late never replaces a newer one.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { asProblem, isAborted, type Problem } from "../api/problem";

export interface Resource<Value> {
  readonly data: Value | null;
  readonly problem: Problem | null;
  readonly isLoading: boolean;
  /** When the data came, by the browser's clock. */
  readonly at: number | null;
  readonly reload: () => void;
}

interface Remembered {
  readonly value: unknown;
  readonly at: number;
}

const MOST_REMEMBERED = 40;
const remembered = new Map<string, Remembered>();

function remember(key: string, value: unknown): void {
  remembered.delete(key);
  remembered.set(key, { value, at: Date.now() });
  for (const oldest of remembered.keys()) {
    if (remembered.size <= MOST_REMEMBERED) break;
    remembered.delete(oldest);
  }
}

/** Forgets all answers, for instance when another person logs in. */
export function forgetAnswers(): void {
  remembered.clear();
}

interface Held {
  readonly key: string | null;
  readonly data: unknown;
  readonly at: number | null;
  readonly problem: Problem | null;
  readonly isLoading: boolean;
}

function startOf(key: string | null): Held {
  const known = key === null ? undefined : remembered.get(key);
  return { key, data: known?.value ?? null, at: known?.at ?? null, problem: null, isLoading: key !== null };
}

/**
 * Asks when the key changes, and then again every `everyMs` while the page is seen. A null key asks
 * nothing.
 */
export function useResource<Value>(
  key: string | null,
  ask: (signal: AbortSignal) => Promise<Value>,
  everyMs: number | null = null,
): Resource<Value> {
  const [held, setHeld] = useState<Held>(() => startOf(key));
  const [turn, setTurn] = useState(0);
  const question = useRef(ask);
  question.current = ask;
  const current = held.key === key ? held : startOf(key);

  useEffect(() => {
    if (key === null) return undefined;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const asked = async (): Promise<void> => {
      try {
        const data = await question.current(controller.signal);
        if (controller.signal.aborted) return;
        remember(key, data);
        setHeld({ key, data, at: Date.now(), problem: null, isLoading: false });
      } catch (error) {
        if (controller.signal.aborted || isAborted(error)) return;
        const problem = asProblem(error);
        setHeld((old) => ({ ...(old.key === key ? old : startOf(key)), problem, isLoading: false }));
      }
      if (everyMs !== null && !controller.signal.aborted) timer = setTimeout(again, everyMs);
    };
    const again = (): void => {
      if (document.hidden) timer = setTimeout(again, 1000);
      else void asked();
    };
    setHeld((old) => (old.key === key ? { ...old, isLoading: true } : startOf(key)));
    void asked();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, turn]);

  const reload = useCallback(() => setTurn((old) => old + 1), []);
  return {
    data: current.data as Value | null,
    problem: current.problem,
    isLoading: current.isLoading,
    at: current.at,
    reload,
  };
}
